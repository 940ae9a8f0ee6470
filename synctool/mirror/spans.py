"""The upstream edits to one file over a range, and what several of them amount to when changes between them are left out."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from synctool.git.tree import Entry
from synctool.mirror.dialect import modernise
from synctool.mirror.filetext import is_binary
from synctool.mirror.model import PathOutcome
from synctool.mirror.pieces import Lines, lines_of, side
from synctool.mirror.sides import Sides, Version
from synctool.mirror.textmerge import TextMerger
from synctool.mirror.threeway import Clash, Merged, Side, merge_entries
from synctool.plan.model import Change


class Edit(NamedTuple):
    """What one upstream change does to the file. A missing side is None."""

    change: Change
    before: Version | None
    after: Version | None


class Span(NamedTuple):
    """Several edits as one: its two ends, and the diff of what could not be carried because it stands on a change that is left out."""

    base: Side | None
    theirs: Side | None
    left_out: bytes = b""


@dataclass
class Track:
    """One file of the run, under whatever names the two sides give it.

    ``place`` is downstream's path now, ``origin`` what stood at ``origin_place`` when the run began. From ``parked`` (an index into ``edits``) on, edits wait:
    ``held`` and ``held_place`` are what downstream has meanwhile, ``clash`` is the best merge so far and ``span`` the edits it is made of.
    """

    place: str
    upstream_path: str
    origin: Entry | None
    origin_place: str
    edits: list[Edit] = field(default_factory=list)
    parked: int | None = None
    held: Entry | None = None
    held_place: str = ""
    clash: Clash | None = None
    span: Span | None = None
    span_edits: Sequence[Edit] = ()
    left: PathOutcome | None = None


def ours_side(sides: Sides, entry: Entry | None, before: Version | None) -> Side | None:
    """Downstream's file as a side, with its outdated lines brought up to the vocabulary that ``before`` is translated with."""
    if entry is None:
        return None
    side = Side(entry.mode, entry.oid, lambda: sides.raw(entry))
    plain = sides.plain(before) if before is not None and side.is_file else None
    if before is None or plain is None:
        return side
    base = sides.content(before)
    if side.data is None or base is None:
        return side
    data = modernise(side.data, base, plain)
    return side if data == side.data else _made(sides, entry.mode, data)


def upstream_side(sides: Sides, version: Version | None) -> Side | None:
    """Upstream's file, translated, as a side."""
    if version is None:
        return None
    oid = sides.oid(version)
    return Side(version.mode, oid, lambda: sides.content(version), made=oid != version.oid)


def compose(sides: Sides, merger: TextMerger, edits: Sequence[Edit]) -> Span:
    """Edits one after another, without what happened to the file between them.

    Where the file differs between the end of one edit and the begin of the next, a change that is left out touched it. The later edit is then merged onto the
    earlier end, so that nothing of the left-out change gets in; hunks that can't be carried without it are returned as ``left_out``.
    """
    base = upstream_side(sides, edits[0].before)
    theirs = upstream_side(sides, edits[0].after)
    left_out = b""
    for earlier, later in itertools.pairwise(edits):
        whole = theirs is not None and _is(sides, theirs, earlier.after) and not left_out
        if whole and _same_version(earlier.after, later.before):
            theirs = upstream_side(sides, later.after)
            continue
        merged = merge_entries(
            merger, (), theirs, upstream_side(sides, later.before), upstream_side(sides, later.after)
        )
        if isinstance(merged, Merged):
            theirs = merged.side if merged.data is None else _made(sides, merged.mode, merged.data)
        elif merged.pieces is not None:
            theirs = _made(sides, merged.mode, side(merged.pieces, "ours"))
            left_out += edit_diff(sides, later)
        else:
            left_out += edit_diff(sides, later)
    return Span(base, theirs, left_out)


def _same_version(one: Version | None, other: Version | None) -> bool:
    if one is None or other is None:
        return one is other
    return (one.mode, one.oid) == (other.mode, other.oid)


def _is(sides: Sides, made: Side, version: Version | None) -> bool:
    """Whether a composed side still is an upstream version, with nothing left out before it."""
    return version is not None and made.oid == sides.oid(version)


def _made(sides: Sides, mode: str, data: bytes) -> Side:
    return Side(mode, sides.store.hash("blob", data), lambda: data, made=True)


def edit_diff(sides: Sides, edit: Edit) -> bytes:
    """A change to one file as a translated unified diff; binary files are only named."""
    old = sides.content(edit.before) if edit.before else b""
    new = sides.content(edit.after) if edit.after else b""
    names = [
        (f"{prefix}/{version.path}" if version else "/dev/null").encode("utf-8", "surrogateescape")
        for prefix, version in (("a", edit.before), ("b", edit.after))
    ]
    if old is None or new is None or is_binary(old) or is_binary(new):
        return b"Binary files %s and %s differ\n" % (names[0], names[1])
    return lines_diff(lines_of(old), lines_of(new), *names)


def lines_diff(old: Lines, new: Lines, old_name: bytes = b"a", new_name: bytes = b"b") -> bytes:
    """A unified diff of two texts."""
    shown: list[bytes] = []
    for line in difflib.diff_bytes(difflib.unified_diff, old, new, old_name, new_name, lineterm=b"\n"):
        shown.append(line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n")
    return b"".join(shown)
