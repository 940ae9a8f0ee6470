"""A parked file as a conflict to show: labelled markers, the changes behind each hunk, and proposals with what they rest on."""

from __future__ import annotations

import re
from collections.abc import Sequence

from synctool.git.tree import Entry
from synctool.mirror.memory import Memory, key_of
from synctool.mirror.model import Conflict, ConflictKind, HunkNote, Proposal
from synctool.mirror.pieces import Hunk, Labels, hunks_of, lines_of, render
from synctool.mirror.resolve.toolbox import Toolbox
from synctool.mirror.sides import Sides
from synctool.mirror.spans import Edit, Track
from synctool.mirror.threeway import Side

_TELLING = re.compile(rb"(?:\w\W*){3}")


def build_conflict(track: Track, sides: Sides, toolbox: Toolbox, memory: Memory, upstream: str) -> Conflict:
    """The conflict of a parked file. Blobs of its sides are written, so that each can be looked at and taken whole."""
    clash, span = track.clash, track.span
    assert clash is not None
    assert span is not None
    edits = track.span_edits
    held = track.held
    # Of seven such files the maintainers deleted six, so that is what the tree shows until someone decides.
    marked = None if clash.kind is ConflictKind.DELETED_THERE else held
    notes: tuple[HunkNote, ...] = ()
    if clash.pieces is not None:
        text = render(clash.pieces, labels(edits, upstream))
        marked = Entry(clash.mode, sides.store.write_blob(text))
        tracer = Tracer(edits, sides, toolbox)
        notes = tuple(
            _note(number, hunk, tracer, toolbox, memory) for number, hunk in enumerate(hunks_of(clash.pieces), 1)
        )
    moved = clash.pieces is not None and held is not None and track.held_place != track.place
    return Conflict(
        path=track.place if moved or held is None or clash.pieces is not None else track.held_place,
        upstream_path=track.upstream_path,
        kind=clash.kind,
        changes=tuple(edit.change.oid for edit in track.edits[track.parked or 0 :]),
        base=_entry(sides, span.base),
        ours=held,
        theirs=_entry(sides, span.theirs),
        marked=marked,
        replaces=(track.held_place,) if moved or (marked is None and held is not None) else (),
        hunks=notes,
        note=_explain(clash.kind, bool(span.left_out)),
    )


def _entry(sides: Sides, side: Side | None) -> Entry | None:
    if side is None:
        return None
    if side.made and side.data is not None:
        sides.store.write_blob(side.data)
    return Entry(side.mode, side.oid)


def _explain(kind: ConflictKind, left_out: bool) -> str:
    words = {
        ConflictKind.DELETED_THERE: "upstream deleted the file; downstream's differs from the translation: it goes unless you take ours",
        ConflictKind.DELETED_HERE: "downstream lacks the file, and its history is too short to tell whether it was deleted",
        ConflictKind.MODE: "the two sides made it different kinds of object; downstream's stays until you decide",
        ConflictKind.BINARY: "both sides changed a file that can't be merged by lines; downstream's stays until you decide",
        ConflictKind.COLLISION: "something else stands at that path, or at one that differs by case only; nothing was written",
    }
    told = words.get(kind, "")
    if left_out:
        told = f"{told}; " if told else ""
        told += "some hunks stand on a change that is left out: they are filed as work, not merged"
    return told


def labels(edits: Sequence[Edit], upstream: str) -> Labels:
    """Labels of the markers, which name the upstream changes at both ends."""
    first, last = edits[0].change, edits[-1].change
    through = first.label if first.oid == last.oid else f"{first.label} to {last.label}"
    return Labels(
        "ours (downstream)",
        f"base ({upstream} {first.parent[:9]}, translated)",
        f"theirs ({upstream} {through}, translated)",
    )


class Tracer:
    """Finds the upstream changes that a hunk comes from: those that add or remove a line which theirs adds or removes there."""

    def __init__(self, edits: Sequence[Edit], sides: Sides, toolbox: Toolbox) -> None:
        self._toolbox = toolbox
        self._edits = edits
        self._moved: list[tuple[set[str], set[str]]] = []
        for edit in edits:
            old, new = (
                self._said(lines_of((sides.content(version) if version else b"") or b""))
                for version in (edit.before, edit.after)
            )
            self._moved.append((old - new, new - old))

    def _said(self, lines: Sequence[bytes]) -> set[str]:
        return {self._toolbox.canonical(line).strip() for line in lines if _TELLING.search(line)}

    def changes(self, hunk: Hunk) -> tuple[str, ...]:
        """Upstream commit ids, oldest first; all of the span where nothing tells."""
        base, theirs = self._said(hunk.base), self._said(hunk.theirs)
        removed, added = base - theirs, theirs - base
        found = tuple(
            edit.change.oid
            for edit, (gone, new) in zip(self._edits, self._moved, strict=True)
            if gone & removed or new & added
        )
        return found or tuple(edit.change.oid for edit in self._edits)


def _note(number: int, hunk: Hunk, tracer: Tracer, toolbox: Toolbox, memory: Memory) -> HunkNote:
    key = key_of(hunk, toolbox.canonical)
    proposals = list(toolbox.propose(hunk))
    remembered = memory.find(key)
    if remembered is not None:
        text = remembered.restore(hunk)
        if text is not None:
            proposals.insert(0, Proposal("memory", text, remembered.rests_on))
    return HunkNote(number, key, tracer.changes(hunk), tuple(proposals))
