"""A claim is a sentence with the sources that say it; a body that holds a claim without one is refused before anybody reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from synctool.errors import Refused

#: Names of sources that are not records: the manifest, policy and patch stack in the head's tree, and git itself.
MANIFEST, POLICY, PATCHES, GIT = "manifest", "policy", "patches", "git"

_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)*(?![\w])")
_HEX = re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{7,64}\b")


@dataclass(frozen=True, slots=True)
class Claim:
    """One sentence (Markdown, one line) and the names of its sources: ids of records and statements, or one of the four above."""

    text: str
    sources: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.sources:
            raise Refused(f"a claim without a source: {self.text}")


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with its claims. ``table`` has a row of cells for each claim of a table; then ``claims`` hold the sources row by row."""

    title: str
    claims: tuple[Claim, ...] = ()
    #: Column titles; each claim's text is then its cells, joined by `` | ``.
    columns: tuple[str, ...] = ()
    #: Shown folded, because it is long.
    folded: bool = False


def numbers(text: str) -> set[str]:
    """The figures and ids that a text states, without thousands separators."""
    plain = re.sub(r"\]\([^)]*\)", "]", text)  # an address is no claim
    return {found.replace(",", "") for found in _NUMBER.findall(plain)} | set(_HEX.findall(plain))


def unsupported(claim: Claim, sources: Mapping[str, Any]) -> set[str]:
    """Figures and ids in a claim that none of its sources contains."""
    missing = [name for name in claim.sources if name not in sources]
    if missing:
        return set(missing)
    said = " ".join(json.dumps(sources[name], ensure_ascii=False, sort_keys=True) for name in claim.sources)
    known = numbers(said)
    return {
        wanted
        for wanted in numbers(claim.text)
        if wanted not in known and not (_HEX.fullmatch(wanted) and wanted in said)
    }


def prove(sections: Sequence[Section], sources: Mapping[str, Any]) -> None:
    """Check every claim.

    Raises:
        Refused: one states a figure or id that its sources do not.
    """
    for section in sections:
        for claim in section.claims:
            if lost := unsupported(claim, sources):
                raise Refused(
                    f"'{claim.text}' would claim {', '.join(sorted(lost))}, which is not recorded",
                    where=f"section '{section.title}'",
                    hint="record it first; the body says only what records say",
                )


def all_sources(sections: Sequence[Section]) -> Iterator[str]:
    """The names of all sources, once each, in order of use."""
    yield from dict.fromkeys(name for section in sections for claim in section.claims for name in claim.sources)
