"""Whether evidence holds for a head: pure functions over records, a target and the paths by which two trees differ.

A record *holds* when it is about this head (current), about an equal tree (carried), or about a tree that differs only in paths which policy calls neutral for
its kind (narrowed, with those paths as the proof). Otherwise it is stale. Of several records of one name that hold, the last that decided counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from synctool.evidence.record import Outcome, Record, Statement, Topic
from synctool.policy.globs import first_match
from synctool.policy.model import EvidenceKind, Neutral

#: Paths by which a tree differs from the target's, or None when the tree is not in this repository.
Delta = Callable[[str], Sequence[str] | None]


class Standing(StrEnum):
    """What a record says about the target."""

    CURRENT = "current"
    CARRIED = "carried"
    NARROWED = "narrowed"
    #: About the pull request that this one is stacked on, or what was there before.
    PARENT = "parent"
    STALE = "stale"
    #: About a commit that this repository does not have.
    UNKNOWN = "unknown"

    @property
    def holds(self) -> bool:
        """Whether it counts as evidence for the target."""
        return self in (Standing.CURRENT, Standing.CARRIED, Standing.NARROWED)


@dataclass(frozen=True, slots=True)
class Target:
    """What evidence is wanted for. ``base`` is the commit that the sync started from."""

    head: str
    tree: str
    base: str | None = None


@dataclass(frozen=True, slots=True)
class Assessed:
    """A record and its standing.

    ``paths`` are those that differ: of a narrowed record all of them (each neutral by ``rules``), of a stale one those that are not neutral.
    ``replaced_by`` is the id of the record or statement because of which it does not count.
    """

    record: Record
    standing: Standing
    paths: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    replaced_by: str = ""

    @property
    def counts(self) -> bool:
        """Whether it is evidence for the target."""
        return self.standing.holds and not self.replaced_by

    @property
    def green(self) -> bool:
        """Whether it counts and passed."""
        return self.counts and self.record.outcome is Outcome.PASSED


@dataclass(frozen=True)
class Ledger:
    """Everything that is recorded, seen from one target."""

    target: Target
    rows: tuple[Assessed, ...] = ()
    statements: tuple[Statement, ...] = ()

    def counting(self) -> list[Assessed]:
        """What is evidence for the target, whatever its outcome."""
        return [row for row in self.rows if row.counts]

    def green(
        self, name: str | None = None, *, kind: EvidenceKind | None = None, platform: str | None = None
    ) -> list[Assessed]:
        """Records that hold and passed, of a name, kind and platform. What an image promotion asks before it goes on."""
        return [
            row
            for row in self.rows
            if row.green
            and (name is None or row.record.name == name)
            and (kind is None or row.record.kind is kind)
            and (platform is None or row.record.platform == platform)
        ]

    def of_sync(self, sync: str) -> Ledger:
        """What belongs to one sync: its own facts, and records of any that hold."""
        return Ledger(
            self.target,
            tuple(row for row in self.rows if row.standing.holds or row.record.sync in ("", sync)),
            tuple(statement for statement in self.statements if statement.sync in ("", sync)),
        )

    def said(self, *topics: Topic) -> list[Statement]:
        """Statements on the topics, oldest first. Of two with one topic, target and text the newest."""
        withdrawn = {s.target for s in self.statements if s.topic is Topic.WITHDRAWS}
        found = {(s.topic, s.target, s.text): s for s in self.statements if s.topic in topics and s.id not in withdrawn}
        return list(found.values())


def stand(
    record: Record,
    target: Target,
    delta: Delta,
    neutrals: Iterable[Neutral] = (),
    is_ancestor: Callable[[str, str], bool] = lambda ancestor, descendant: False,
) -> Assessed:
    """The standing of one record. ``is_ancestor`` tells what belongs to the parent of a stacked sync."""
    if record.head == target.head and record.tree in (target.tree, None):
        return Assessed(record, Standing.CURRENT)
    if record.tree is None:
        return Assessed(record, Standing.UNKNOWN)
    if record.tree == target.tree:
        return Assessed(record, Standing.CARRIED)
    paths = delta(record.tree)
    if paths is None:
        return Assessed(record, Standing.UNKNOWN)
    rules = [rule for rule in neutrals if record.kind in rule.kinds]
    used: dict[str, None] = {}
    open_paths = []
    for path in paths:
        rule = next((rule for rule in rules if first_match(rule.paths, path) is not None), None)
        if rule is None:
            open_paths.append(path)
        else:
            used.setdefault(rule.reason)
    if not open_paths:
        return Assessed(record, Standing.NARROWED, tuple(paths), tuple(used))
    if target.base and record.head and is_ancestor(record.head, target.base):
        return Assessed(record, Standing.PARENT, tuple(open_paths))
    return Assessed(record, Standing.STALE, tuple(open_paths))


def assess(
    records: Iterable[Record],
    statements: Iterable[Statement],
    target: Target,
    delta: Delta,
    neutrals: Sequence[Neutral] = (),
    is_ancestor: Callable[[str, str], bool] = lambda ancestor, descendant: False,
) -> Ledger:
    """The ledger for a target. Records come oldest first."""
    said = tuple(statements)
    rows = [stand(record, target, delta, neutrals, is_ancestor) for record in records]
    withdrawn = {s.target: s.id for s in said if s.topic is Topic.WITHDRAWS}
    rows = [replace(row, replaced_by=withdrawn.get(row.record.id, "")) for row in rows]
    return Ledger(target, tuple(_replace_older(rows)), said)


def _replace_older(rows: list[Assessed]) -> list[Assessed]:
    """Mark what a later record of the same name replaces: the last that holds and decided speaks for its name, or else the last that waits."""
    speaks: dict[str, Assessed] = {}
    for row in rows:
        if not row.counts:
            continue
        record, before = row.record, speaks.get(row.record.name)
        if record.outcome.decides or before is None or not before.record.outcome.decides:
            speaks[record.name] = row
    place = {id(row): number for number, row in enumerate(rows)}

    def replaced_by(row: Assessed) -> str:
        speaker = speaks.get(row.record.name)
        if speaker is None or speaker is row:
            return row.replaced_by
        # A run that began after the one that speaks has not been replaced by it: it is still owed an answer.
        waits = row.record.outcome is Outcome.PENDING and place[id(row)] > place[id(speaker)]
        return row.replaced_by if waits or row.replaced_by else speaker.record.id

    return [replace(row, replaced_by=replaced_by(row)) for row in rows]
