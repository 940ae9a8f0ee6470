"""The plan as values: what would happen to each upstream change, and why.

Nothing here knows git or files. ``to_json`` gives the stable form that ``vime-sync plan --json`` prints.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from synctool.git.commits import Commit


class Confidence(StrEnum):
    """How sure the pull request number of a change is."""

    #: A forge says so, and names this very commit.
    CERTAIN = "certain"
    #: Written by the forge itself at merge time, or a trailer made for this purpose.
    HIGH = "high"
    #: The usual form, but a person could have typed it.
    MEDIUM = "medium"
    #: A link or a mention, or a number that another change claims too.
    LOW = "low"


class Strength(StrEnum):
    """How much a piece of evidence that a change is already present proves."""

    #: Someone recorded it: a trailer of a sync that was not reverted, or a recorded port.
    RECORDED = "recorded"
    #: The same edit was found: equal patch, or every hunk in the tree.
    STRONG = "strong"
    #: Most of it was found; reported, never decided upon.
    PARTIAL = "partial"
    #: Prose mentions it.
    CLAIM = "claim"


class Kind(StrEnum):
    """What happens to a change."""

    TAKE = "take"
    EXCLUDE = "exclude"
    PRESENT = "present"
    DEFER = "defer"
    COLLAPSED = "collapsed"


@dataclass(frozen=True, slots=True)
class Identity:
    """The pull request that a change came from.

    ``source`` says how it was found: ``squash``, ``merge``, ``trailer``, ``link`` or ``forge``. ``note`` explains a lowered confidence.
    """

    number: int
    confidence: Confidence
    source: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """One first-parent upstream commit. ``parent`` is its first parent, or the empty tree's id for a root commit."""

    commit: Commit
    parent: str
    identity: Identity | None = None

    @property
    def oid(self) -> str:
        """The upstream commit id."""
        return self.commit.oid

    @property
    def label(self) -> str:
        """How people name it: ``#2016``, or a short id where no number is known."""
        return f"#{self.identity.number}" if self.identity else self.commit.oid[:9]


@dataclass(frozen=True, slots=True)
class Evidence:
    """One reason to believe that a change is present already.

    ``kind``: ``trailer``, ``port``, ``manifest``, ``patch``, ``commit-hunks``, ``hunks`` or ``claim``. ``downstream`` is the commit that shows it, when
    one does. ``found`` of ``total`` hunks were seen.
    """

    kind: str
    strength: Strength
    detail: str
    downstream: str | None = None
    found: int = 0
    total: int = 0


_RANKS = {strength: rank for rank, strength in enumerate(Strength)}


def strongest_first(evidence: Iterable[Evidence]) -> list[Evidence]:
    """Evidence by strength; of equal strength as it was."""
    return sorted(evidence, key=lambda one: _RANKS[one.strength])


@dataclass(frozen=True, slots=True)
class Decision:
    """What happens to a change and why. ``by`` says who decided: ``plan``, ``policy``, ``manifest`` or ``option``."""

    kind: Kind
    reason: str = ""
    owner: str = ""
    evidence: tuple[Evidence, ...] = ()
    by: str = "plan"


@dataclass(frozen=True, slots=True)
class Dependency:
    """The change touches lines, in ``paths``, that the upstream change ``on`` brought or removed."""

    on: str
    label: str
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """A change with its decision, the excluded or deferred changes that it stands on, and remarks."""

    change: Change
    decision: Decision
    depends_on: tuple[Dependency, ...] = ()
    notes: tuple[str, ...] = ()

    def decided(self, decision: Decision) -> PlannedChange:
        """The same change with another decision."""
        return replace(self, decision=decision)

    def noted(self, *notes: str) -> PlannedChange:
        """The same change with further remarks."""
        return replace(self, notes=self.notes + notes)


@dataclass(frozen=True)
class Plan:
    """All changes of a range, oldest first.

    ``base`` is exclusive; None means from upstream's first commit. ``base_from`` says where it came from. ``picks`` is True when single changes were
    asked for: then ``items`` need not be neighbours. ``downstream`` is the commit that presence was checked against.
    """

    base: str | None
    through: str
    downstream: str | None
    items: tuple[PlannedChange, ...]
    base_from: str = ""
    picks: bool = False
    warnings: tuple[str, ...] = ()
    manifest: str | None = field(default=None)

    def __iter__(self) -> Iterator[PlannedChange]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def taken(self) -> tuple[PlannedChange, ...]:
        """The changes to mirror, oldest first."""
        return tuple(item for item in self.items if item.decision.kind is Kind.TAKE)

    def counts(self) -> dict[str, int]:
        """How many changes each decision got; every kind is named."""
        seen = Counter(item.decision.kind for item in self.items)
        return {str(kind): seen[kind] for kind in Kind}

    def identities(self) -> dict[str, int]:
        """How many changes each identity route named, ``none`` included."""
        seen = Counter(item.change.identity.source if item.change.identity else "none" for item in self.items)
        return dict(sorted(seen.items()))

    def find(self, name: str) -> PlannedChange | None:
        """A change by pull request (``#2016`` or ``2016``) or by the start of its id (at least 7 characters)."""
        number = name.removeprefix("#")
        for item in self.items:
            identity = item.change.identity
            if number.isdigit() and identity and identity.number == int(number):
                return item
        if len(name) >= 7:
            return next((item for item in self.items if item.change.oid.startswith(name)), None)
        return None


def to_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON values. Keys are part of schema ``vime-sync/1``."""
    return {
        "base": plan.base,
        "base_from": plan.base_from,
        "through": plan.through,
        "downstream": plan.downstream,
        "picks": plan.picks,
        "manifest": plan.manifest,
        "counts": plan.counts(),
        "identities": plan.identities(),
        "warnings": list(plan.warnings),
        "changes": [_change_json(number, item) for number, item in enumerate(plan.items, 1)],
    }


def _change_json(number: int, item: PlannedChange) -> dict[str, Any]:
    change, decision, identity = item.change, item.decision, item.change.identity
    return {
        "n": number,
        "commit": change.oid,
        "parent": change.parent,
        "merge": len(change.commit.parents) > 1,
        "subject": change.commit.subject,
        "author": f"{change.commit.author.name} <{change.commit.author.email}>",
        "pr": None
        if identity is None
        else {
            "number": identity.number,
            "confidence": str(identity.confidence),
            "source": identity.source,
            "note": identity.note,
        },
        "decision": str(decision.kind),
        "by": decision.by,
        "reason": decision.reason,
        "owner": decision.owner,
        "evidence": [
            {
                "kind": e.kind,
                "strength": str(e.strength),
                "detail": e.detail,
                "downstream": e.downstream,
                "found": e.found,
                "total": e.total,
            }
            for e in decision.evidence
        ],
        "depends_on": [{"commit": d.on, "label": d.label, "paths": list(d.paths)} for d in item.depends_on],
        "notes": list(item.notes),
    }
