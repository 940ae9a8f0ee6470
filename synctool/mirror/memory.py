"""Conflict memory: how a conflict like this one was resolved before, by whom and where. Files in the repository, so that it is shared and reviewed.

One JSON file a hunk, named by the key of the normalised conflict. Keys use canonical words without blanks, so that a conflict that comes again with other
indentation or in upstream's words is still found.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from synctool.errors import ConfigError
from synctool.git.objects import ObjectStore
from synctool.git.tree import Tree
from synctool.mirror.pieces import Hunk

FOLDER = "sync_manifests/memory"
SCHEMA = 1


def key_of(hunk: Hunk, canonical: Callable[[bytes], str]) -> str:
    """The key of a conflict: 24 hexadecimal digits over its three sides, in canonical words and without blanks."""
    sides = ("".join(canonical(b"".join(side)).split()) for side in (hunk.ours, hunk.base, hunk.theirs))
    return hashlib.sha256("\0".join(sides).encode("utf-8", "surrogateescape")).hexdigest()[:24]


@dataclass(frozen=True, slots=True)
class Resolution:
    """How a hunk was resolved. ``choice`` is ``ours``, ``theirs`` or ``text``; ``sides`` are the three texts it was resolved from."""

    key: str
    choice: str
    text: bytes
    sides: tuple[bytes, bytes, bytes]
    who: str
    where: str
    path: str

    @property
    def rests_on(self) -> str:
        """For people: who resolved it and where."""
        return f"resolved so by {self.who} in {self.where} ({self.path})"

    def restore(self, hunk: Hunk) -> bytes | None:
        """The resolution for a hunk with this key. One that differs in blanks or words from the recorded one can only take a side."""
        if self.choice == "ours":
            return b"".join(hunk.ours)
        if self.choice == "theirs":
            return b"".join(hunk.theirs)
        same = tuple(map(b"".join, (hunk.ours, hunk.base, hunk.theirs))) == self.sides
        return self.text if same else None


def remember(hunk: Hunk, text: bytes, key: str, *, who: str, where: str, path: str) -> Resolution:
    """The record of a resolved hunk."""
    ours, base, theirs = (b"".join(side) for side in (hunk.ours, hunk.base, hunk.theirs))
    choice = "ours" if text == ours else "theirs" if text == theirs else "text"
    return Resolution(key, choice, text, (ours, base, theirs), who, where, path)


@dataclass(frozen=True)
class Memory:
    """All known resolutions, by key."""

    known: Mapping[str, Resolution] = field(default_factory=dict)

    def find(self, key: str) -> Resolution | None:
        """The resolution of the conflict with this key."""
        return self.known.get(key)

    @classmethod
    def of(cls, resolutions: Iterable[Resolution]) -> Memory:
        """A memory of these; a later record of a key replaces an earlier one."""
        return cls({resolution.key: resolution for resolution in resolutions})


def load_memory(store: ObjectStore, tree: Tree, folder: str = FOLDER) -> Memory:
    """The memory kept in a tree.

    Raises:
        ConfigError: a file in the folder is no record of ours; ``where`` names it.
    """
    found = []
    for path, entry in tree.items(folder):
        if path.endswith(".json"):
            found.append(_parse(store.read(entry.oid, "blob"), path))
    return Memory.of(found)


def dump(resolution: Resolution) -> tuple[str, bytes]:
    """Path and content of the file that keeps a resolution."""
    value = {
        "schema": SCHEMA,
        "key": resolution.key,
        "choice": resolution.choice,
        "who": resolution.who,
        "where": resolution.where,
        "path": resolution.path,
        "resolution": _lines(resolution.text),
        **{name: _lines(side) for name, side in zip(("ours", "base", "theirs"), resolution.sides, strict=True)},
    }
    data = json.dumps(value, indent=1, ensure_ascii=True) + "\n"
    return f"{FOLDER}/{resolution.key}.json", data.encode()


def _lines(data: bytes) -> list[str]:
    return data.decode("utf-8", "surrogateescape").splitlines(keepends=True)


def _parse(data: bytes, path: str) -> Resolution:
    try:
        value: Any = json.loads(data)
        if value["schema"] != SCHEMA:
            raise ConfigError(
                f"written by another version (schema {value['schema']})", where=path, hint="update vime-sync"
            )

        def text(name: str) -> bytes:
            return "".join(value[name]).encode("utf-8", "surrogateescape")

        sides = (text("ours"), text("base"), text("theirs"))
        words = [str(value[name]) for name in ("key", "choice", "who", "where", "path")]
        key, choice, who, where, file = words
        return Resolution(key, choice, text("resolution"), sides, who, where, file)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        hint = "restore the file from history, or delete it"
        raise ConfigError("not a record of the conflict memory", where=path, hint=hint) from error
