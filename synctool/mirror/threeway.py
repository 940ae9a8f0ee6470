"""Three-way merge of one tree entry: absent or not, kind of object, mode, content. Pure but for reading contents through ``Side``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from synctool.git.tree import EXECUTABLE, FILE
from synctool.mirror.filetext import Resolver, is_binary, merge_text
from synctool.mirror.model import ConflictKind
from synctool.mirror.pieces import Hunk, Pieces, hunks_of, side
from synctool.mirror.textmerge import TextMerger


class Side:
    """One side's file: mode, object id, and its content when asked for (None: not readable as bytes)."""

    def __init__(self, mode: str, oid: str, load: Callable[[], bytes | None], *, made: bool = False) -> None:
        self.mode = mode
        self.oid = oid
        #: Whether the content was made here (translated, merged), so that its blob may not exist yet.
        self.made = made
        self._load = load

    @cached_property
    def data(self) -> bytes | None:
        """The content, or None for a submodule or a blob over the size bound."""
        return self._load()

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return self.mode in (FILE, EXECUTABLE)

    def same(self, other: Side | None) -> bool:
        """Equal in mode and content."""
        return other is not None and self.mode == other.mode and self.oid == other.oid


@dataclass(frozen=True, slots=True)
class Merged:
    """A clean result: one of the sides (or None: no file), or a text made of both (``data``) with its mode."""

    side: Side | None = None
    mode: str = ""
    data: bytes | None = None
    settled: tuple[str, ...] = ()
    dropped: tuple[Hunk, ...] = ()


@dataclass(frozen=True, slots=True)
class Clash:
    """No clean result. ``pieces`` are given where the texts could be merged in part; ``mode`` is the merged mode."""

    kind: ConflictKind
    mode: str = ""
    pieces: Pieces | None = None
    settled: tuple[str, ...] = ()
    dropped: tuple[Hunk, ...] = ()

    def weight(self) -> tuple[int, int]:
        """How much is left to a person: hunks, then lines. What can't be merged by lines weighs most."""
        if self.pieces is None:
            return 1 << 30, 0
        hunks = hunks_of(self.pieces)
        return len(hunks), sum(max(len(hunk.ours), len(hunk.theirs)) for hunk in hunks)


Resolvers = tuple[tuple[str, Resolver], ...]


def merge_entries(
    merger: TextMerger, resolvers: Resolvers, ours: Side | None, base: Side | None, theirs: Side | None
) -> Merged | Clash:
    """One entry from three."""
    if ours is None or theirs is None:
        return _merge_absent(merger, resolvers, ours, base, theirs)
    if ours.same(theirs) or (base is not None and base.same(theirs)):
        return Merged(ours)
    if base is not None and ours.same(base):
        return Merged(theirs)
    if not (ours.is_file and theirs.is_file and (base is None or base.is_file)):
        same_kind = ours.mode == theirs.mode
        return Clash(ConflictKind.BINARY if same_kind else ConflictKind.MODE, ours.mode)
    mode = _merge_modes(ours, base, theirs)
    if ours.oid == theirs.oid or (base is not None and base.oid == theirs.oid):
        return _with_mode(ours, mode)
    if base is not None and base.oid == ours.oid:
        return _with_mode(theirs, mode)
    return _merge_contents(merger, resolvers, ours, base, theirs, mode)


def _merge_absent(
    merger: TextMerger, resolvers: Resolvers, ours: Side | None, base: Side | None, theirs: Side | None
) -> Merged | Clash:
    if ours is None:
        # What a missing file of ours means was decided before (see ``absence``); here it means that there is none yet.
        return Merged(theirs)
    if base is None or ours.same(base) or _only_words(merger, resolvers, ours, base):
        return Merged(None) if base is not None else Merged(ours)
    return Clash(ConflictKind.DELETED_THERE, ours.mode)


def _only_words(merger: TextMerger, resolvers: Resolvers, ours: Side, base: Side) -> bool:
    """Whether ours differs from base in nothing that the resolvers would keep against an upstream that emptied the file."""
    if ours.data is None or base.data is None or is_binary(ours.data) or is_binary(base.data):
        return False
    if not (ours.is_file and base.is_file):
        return False
    merged = merge_text(merger, ours.data, base.data, b"", resolvers)
    return merged.clean and not side(merged.pieces, "ours").strip()


def _merge_modes(ours: Side, base: Side | None, theirs: Side) -> str:
    """For files only 644 and 755 exist, so with a base there is never a conflict. Without one, executable wins."""
    if base is None:
        return EXECUTABLE if EXECUTABLE in (ours.mode, theirs.mode) else FILE
    return theirs.mode if ours.mode == base.mode else ours.mode


def _with_mode(chosen: Side, mode: str) -> Merged:
    return Merged(chosen if chosen.mode == mode else Side(mode, chosen.oid, lambda: chosen.data, made=chosen.made))


def _merge_contents(
    merger: TextMerger, resolvers: Resolvers, ours: Side, base: Side | None, theirs: Side, mode: str
) -> Merged | Clash:
    contents = [ours.data, base.data if base is not None else b"", theirs.data]
    if any(data is None or is_binary(data) for data in contents):
        return Clash(ConflictKind.BINARY, mode)
    mine, old, yours = (data or b"" for data in contents)
    merged = merge_text(merger, mine, old, yours, resolvers)
    if merged.clean:
        return Merged(mode=mode, data=side(merged.pieces, "ours"), settled=merged.settled, dropped=merged.dropped)
    kind = ConflictKind.CONTENT if base is not None else ConflictKind.BOTH_ADDED
    return Clash(kind, mode, merged.pieces, merged.settled, merged.dropped)
