"""What a mirror run gives, as values: a tree for each upstream change, the conflicts collected over the whole range, and what was not applied and why.

Nothing here reads or writes objects. ``Conflict`` and its parts go through JSON (``to_json``, ``from_json``), for the session and for ``--json``; texts
of conflicts stay in the object store and come back through ``pieces.parse_conflicts``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from synctool.git.tree import Entry
from synctool.plan.model import PlannedChange


class ConflictKind(StrEnum):
    """What the two sides disagree about."""

    #: Both changed the same lines.
    CONTENT = "content"
    #: Downstream deleted the file, upstream changed it. Only where the policy lets such files come back.
    DELETED_HERE = "deleted here"
    #: Upstream deleted the file, downstream's differs from the translation.
    DELETED_THERE = "deleted there"
    #: Both added a file of that name, with other content.
    BOTH_ADDED = "both added"
    #: Both changed the mode, or one side made it another kind of object (a link, a submodule).
    MODE = "mode"
    #: Both changed a file that can't be merged by lines.
    BINARY = "binary"
    #: The path can't stand beside one that is there: a file where a folder is, a folder where a file is, or names that differ by case only.
    COLLISION = "collision"


class Action(StrEnum):
    """What happened to one path in one change."""

    TAKEN = "taken"
    MERGED = "merged"
    ADDED = "added"
    BACKFILLED = "backfilled"
    DELETED = "deleted"
    MOVED = "moved"
    #: Downstream's is what upstream's became: nothing to do.
    PRESENT = "present"
    #: In conflict: held back until the conflict is resolved.
    PARKED = "parked"
    #: Left alone because of a rule (native, excluded, deleted here, kept).
    KEPT = "kept"
    #: Filed as work: the path is downstream's port.
    FILED = "filed"
    #: Hostile or out of bounds: never written.
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class PathOutcome:
    """What happened to a downstream path in a change, and by which rule."""

    path: str
    upstream_path: str
    action: Action
    reason: str = ""
    where: str = ""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A possible resolution of one hunk. ``rests_on`` says on what; ``offered`` is False for kinds that are not right often enough to be shown unasked."""

    kind: str
    text: bytes
    rests_on: str
    offered: bool = True


@dataclass(frozen=True, slots=True)
class HunkNote:
    """What is known about one conflict hunk: its number in the file (from 1), its memory key, the upstream commits that it comes from, proposals."""

    number: int
    key: str
    changes: tuple[str, ...]
    proposals: tuple[Proposal, ...] = ()


@dataclass(frozen=True, slots=True)
class Conflict:
    """One file that needs a decision, shown once for the whole range.

    ``changes`` are the upstream commits whose edits to the file wait in it, oldest first. ``base``, ``ours``, ``theirs`` are
    the three sides in full (translated; None: no such file). ``marked`` is what stands at ``path`` in the result's tree
    until the conflict is resolved: the text with markers, one of the sides, or nothing (None). ``replaces`` are paths that
    are absent from that tree: where the file was before it moved or went.
    """

    path: str
    upstream_path: str
    kind: ConflictKind
    changes: tuple[str, ...]
    base: Entry | None
    ours: Entry | None
    theirs: Entry | None
    marked: Entry | None
    replaces: tuple[str, ...] = ()
    hunks: tuple[HunkNote, ...] = ()
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """JSON values; texts of proposals as UTF-8 with surrogate escapes."""
        return {
            "path": self.path,
            "upstream_path": self.upstream_path,
            "kind": str(self.kind),
            "changes": list(self.changes),
            "base": _entry_json(self.base),
            "ours": _entry_json(self.ours),
            "theirs": _entry_json(self.theirs),
            "marked": _entry_json(self.marked),
            "replaces": list(self.replaces),
            "hunks": [
                {
                    "number": hunk.number,
                    "key": hunk.key,
                    "changes": list(hunk.changes),
                    "proposals": [
                        {
                            "kind": p.kind,
                            "text": p.text.decode("utf-8", "surrogateescape"),
                            "rests_on": p.rests_on,
                            "offered": p.offered,
                        }
                        for p in hunk.proposals
                    ],
                }
                for hunk in self.hunks
            ],
            "note": self.note,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Conflict:
        """The inverse of ``to_json``."""
        hunks = tuple(
            HunkNote(
                hunk["number"],
                hunk["key"],
                tuple(hunk["changes"]),
                tuple(
                    Proposal(p["kind"], p["text"].encode("utf-8", "surrogateescape"), p["rests_on"], p["offered"])
                    for p in hunk["proposals"]
                ),
            )
            for hunk in value["hunks"]
        )
        base, ours, theirs, marked = (
            Entry(*value[side]) if value[side] else None for side in ("base", "ours", "theirs", "marked")
        )
        return cls(
            value["path"],
            value["upstream_path"],
            ConflictKind(value["kind"]),
            tuple(value["changes"]),
            base,
            ours,
            theirs,
            marked,
            replaces=tuple(value["replaces"]),
            hunks=hunks,
            note=value["note"],
        )


def _entry_json(entry: Entry | None) -> list[str] | None:
    return list(entry) if entry else None


@dataclass(frozen=True, slots=True)
class WorkItem:
    """An upstream edit that was not applied, as a translated diff, for a person to carry over; ``reason`` says why."""

    path: str
    upstream_path: str
    change: str
    label: str
    diff: bytes
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One upstream change mirrored. ``tree`` is downstream's tree after it, in which files in conflict still stand as before their first conflicting change."""

    change: PlannedChange
    tree: str
    paths: tuple[PathOutcome, ...]

    @property
    def waiting(self) -> tuple[str, ...]:
        """Paths whose edits in this change wait in a conflict, or waited in one that a later change settled."""
        return tuple(outcome.path for outcome in self.paths if outcome.action is Action.PARKED)


@dataclass(frozen=True, slots=True)
class MirrorResult:
    """A whole range mirrored.

    ``before`` is downstream's tree at the start, ``tree`` the tree at the end with every conflict in place (markers).
    ``work`` is what was not applied and needs a person: edits to ports and to lines that downstream removed or rewrote, and
    edits that stand on a change that is left out.
    """

    before: str
    tree: str
    steps: tuple[Step, ...]
    conflicts: tuple[Conflict, ...]
    work: tuple[WorkItem, ...] = ()
    warnings: tuple[str, ...] = ()

    def conflicting_changes(self) -> frozenset[str]:
        """Upstream commits that some conflict comes from: of a file in conflict only those whose edits stand in a conflicting hunk."""
        found: set[str] = set()
        for conflict in self.conflicts:
            named = {change for hunk in conflict.hunks for change in hunk.changes}
            found |= named or set(conflict.changes)
        return frozenset(found)

    def find(self, path: str) -> Conflict | None:
        """The conflict at a path."""
        return next((conflict for conflict in self.conflicts if conflict.path == path), None)
