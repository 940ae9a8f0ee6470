"""What a check says. A ``Hit`` is one place; hits about one subject are told as one ``Finding``."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Rule:
    """A kind of finding: its id, what it means in a few words, and why anyone should care."""

    id: str
    title: str
    why: str


@dataclass(frozen=True, slots=True)
class Edit:
    """A mechanical cure: in line ``line`` (from 1) of ``path``, ``old`` becomes ``new``."""

    path: str
    line: int
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Hit:
    """One place where a rule is broken. ``line`` counts from 1; 0 means the file as a whole (or a commit, when ``path`` is empty).

    ``subject`` is what the hit is about (a name, a flag, a page): hits of one rule with one subject are one finding.
    """

    rule: Rule
    subject: str
    path: str
    line: int
    message: str
    mend: str
    edit: Edit | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """Everything that one rule says about one subject, places in order."""

    rule: Rule
    subject: str
    hits: tuple[Hit, ...]

    @property
    def message(self) -> str:
        """The distinct messages of the places, the first few in full."""
        told = list(dict.fromkeys(hit.message for hit in self.hits))
        more = f"; and {len(told) - 6} more" if len(told) > 6 else ""
        return "; ".join(told[:6]) + more

    @property
    def mend(self) -> str:
        """How to mend it."""
        return "; ".join(list(dict.fromkeys(hit.mend for hit in self.hits))[:6])

    @property
    def fingerprint(self) -> str:
        """Stable while the subject and the files stay, whatever happens to line numbers."""
        files = "\n".join(sorted({hit.path for hit in self.hits}))
        return hashlib.sha256(f"{self.rule.id}\n{self.subject}\n{files}".encode("utf-8", "surrogateescape")).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "rule": self.rule.id,
            "title": self.rule.title,
            "why": self.rule.why,
            "subject": self.subject,
            "message": self.message,
            "mend": self.mend,
            "fixable": any(hit.edit for hit in self.hits),
            "fingerprint": self.fingerprint,
            "places": [{"path": hit.path, "line": hit.line, "message": hit.message} for hit in self.hits],
        }


def gather(hits: Iterable[Hit]) -> list[Finding]:
    """Findings from hits, in order of rule, first path and line. A place that is told twice counts once."""
    groups: dict[tuple[str, str], dict[tuple[str, int, str], Hit]] = {}
    for hit in hits:
        groups.setdefault((hit.rule.id, hit.subject), {}).setdefault((hit.path, hit.line, hit.message), hit)
    found = []
    for group in groups.values():
        ordered = tuple(sorted(group.values(), key=lambda hit: (hit.path, hit.line, hit.message)))
        found.append(Finding(ordered[0].rule, ordered[0].subject, ordered))
    return sorted(found, key=lambda finding: (finding.rule.id, finding.hits[0].path, finding.hits[0].line))


def page(path: str) -> str:
    """A documentation page without its language: ``docs/en/x.md`` and ``docs/zh/x.md`` are one page."""
    return re.sub(r"(^|/)(?:en|zh)(?=/)", r"\1*", path)
