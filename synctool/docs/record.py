"""The record of documentation, ``sync_manifests/docs.json``: hashes of the sections that a translation was made from."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from synctool.errors import ConfigError
from synctool.whole_file import write_whole

PLACE = "sync_manifests/docs.json"
SCHEMA = 1


@dataclass
class Record:
    """What is known of earlier translations."""

    #: Downstream page -> section key -> (hash of upstream's source, hash of the result).
    upstream: dict[str, dict[str, tuple[str, str]]] = field(default_factory=dict)
    #: Page in another language -> hashes of the first language's sections, in order, that it was in step with.
    languages: dict[str, list[str]] = field(default_factory=dict)


def load(root: Path) -> Record:
    """The record of a repository; empty when there is none.

    Raises:
        ConfigError: the file is not what this program writes.
    """
    file = root / PLACE
    if not file.exists():
        return Record()
    try:
        value: Any = json.loads(file.read_text(encoding="utf-8"))
        if value["schema"] != SCHEMA:
            raise ValueError(f"schema {value['schema']!r} is not {SCHEMA}")
        upstream = {
            str(page): {str(key): (str(pair[0]), str(pair[1])) for key, pair in keys.items()}
            for page, keys in value["upstream"].items()
        }
        languages = {str(page): [str(one) for one in hashes] for page, hashes in value["languages"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OSError) as error:
        raise ConfigError(
            f"not a record of documentation: {error}", where=PLACE, hint="restore it from git; 'docs' verbs write it"
        ) from None
    return Record(upstream, languages)


def save(root: Path, record: Record) -> None:
    """Write the record as one step, keys sorted so that merges of two branches stay small."""
    value = {"schema": SCHEMA, "upstream": record.upstream, "languages": record.languages}
    write_whole(root / PLACE, json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
