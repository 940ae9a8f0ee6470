"""Applies a parsed patch to a tree, exactly: all of it or nothing.

Where a hunk goes follows ``git apply``: its new line number first, then nearest places forward and backward; a hunk at the file's start or end
is anchored there; lines that an earlier hunk wrote are not context for a later one. Every context line must match to the byte. Offsets are
reported. Less context (fuzz) counts only where the patch's header waives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from synctool.errors import SyncError
from synctool.git.tree import EXECUTABLE, FILE, SYMLINK, Entry, Tree
from synctool.patches.filepatch import FilePatch, Hunk, PatchText
from synctool.patches.pathpolicy import Allowed, check_link_target, check_patch, check_place


class DoesNotApply(SyncError):
    """A patch does not fit. ``where`` is the patch file and line, the title says which path and why."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Where one hunk went: ``line`` is 1-based in the new file, ``offset`` in lines from where the patch says.

    ``alternatives`` counts other places where the hunk's old lines also match: with an offset, more than none means that the place is a guess.
    ``dropped`` is the number of context lines that a waiver let go.
    """

    line: int
    offset: int
    alternatives: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What applying one ``FilePatch`` did. ``stale_index``: the file differs from the one that the patch's ``index`` line names."""

    change: FilePatch
    placed: tuple[Placed, ...]
    stale_index: bool

    @property
    def offset(self) -> bool:
        """Whether any hunk moved."""
        return any(place.offset for place in self.placed)


def split_lines(data: bytes) -> list[bytes]:
    """Lines with their ``\\n``; only a last line may lack it. (``bytes.splitlines`` also splits at ``\\r``.)"""
    lines = [line + b"\n" for line in data.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


class Image:
    """A file's lines while hunks are applied to it."""

    def __init__(self, lines: list[bytes]) -> None:
        self.lines = lines
        self.written = bytearray(len(lines))

    def fits(self, old: Sequence[bytes], at: int) -> bool:
        end = at + len(old)
        return end <= len(self.lines) and self.lines[at:end] == old and not any(self.written[at:end])

    def places(self, old: Sequence[bytes]) -> list[int]:
        """All places where ``old`` matches, in order."""
        if not old:
            return list(range(len(self.lines) + 1))
        found: list[int] = []
        at = -1
        while True:
            try:
                at = self.lines.index(old[0], at + 1)
            except ValueError:
                return found
            if self.fits(old, at):
                found.append(at)

    def replace(self, at: int, old: int, new: Sequence[bytes]) -> None:
        self.lines[at : at + old] = new
        self.written[at : at + old] = b"\1" * len(new)


def place_hunk(image: Image, hunk: Hunk, keep_context: int | None = None, *, anchored: bool = True) -> Placed | None:
    """Find where a hunk goes and put it there; None if nowhere. Without ``anchored`` a hunk at the file's start or end may go anywhere.

    ``keep_context``: the number of context lines on each side that must match, when a waiver allows fewer than the hunk has.
    """
    old, new = hunk.old, hunk.new
    leading, trailing = hunk.leading, hunk.trailing
    at_start, at_end = anchored and hunk.old_start <= 1, anchored and trailing == 0
    expected = max(hunk.new_start - 1, 0)
    dropped = 0
    while True:
        found = _find(image, old, expected, at_start, at_end)
        if found is not None:
            at, alternatives = found
            image.replace(at, len(old), new)
            return Placed(at + 1, at - expected, alternatives, dropped)
        if keep_context is None or (leading <= keep_context and trailing <= keep_context):
            return None
        if at_start or at_end:
            at_start = at_end = False
            continue
        if leading >= trailing:
            old, new, expected, leading = old[1:], new[1:], expected + 1, leading - 1
            dropped += 1
        if trailing > leading:
            old, new, trailing = old[:-1], new[:-1], trailing - 1
            dropped += 1


def _find(image: Image, old: list[bytes], expected: int, at_start: bool, at_end: bool) -> tuple[int, int] | None:
    """``(position, other places)`` of the match that git would take."""
    total = len(image.lines)
    if at_start or at_end:
        at = 0 if at_start else total - len(old)
        if at < 0 or (at_end and at + len(old) != total) or not image.fits(old, at):
            return None
        return at, 0
    if image.fits(old, expected):
        return expected, 0
    places = image.places(old)
    if not places:
        return None
    start = min(expected, total)
    best = min(places, key=lambda at: (abs(at - start), at < start))
    return best, len(places) - 1


def apply_hunks(
    data: bytes, hunks: Sequence[Hunk], keep_context: int | None = None
) -> tuple[bytes, tuple[Placed, ...]] | Hunk:
    """The file's new content and where the hunks went, or the first hunk that has no place."""
    image = Image(split_lines(data))
    placed = []
    for hunk in hunks:
        place = place_hunk(image, hunk, keep_context)
        if place is None:
            return hunk
        placed.append(place)
    return b"".join(image.lines), tuple(placed)


def apply_patch(
    tree: Tree, patch: PatchText, name: str, *, allowed: Allowed | None = None, keep_context: int | None = None
) -> tuple[Tree, tuple[Outcome, ...]]:
    """Apply all of a patch. Returns a new tree (not yet written) and what was done; ``tree`` is left as it is.

    Every preimage is read from ``tree``, so that files may swap names within one patch.

    Raises:
        Refused: the path policy forbids it.
        DoesNotApply: something does not fit; nothing of the patch is applied.
    """
    check_patch(patch, name, allowed or Allowed())
    results = [apply_change(tree, change, name, keep_context) for change in patch.files]
    changed = tree.copy()
    for change, _, _ in results:
        if change.old_path is not None and change.move != "copy" and change.old_path != change.new_path:
            changed.delete(change.old_path)
    for change, entry, _ in results:
        if change.new_path is None or entry is None:
            continue
        where = f"{name}:{change.at}"
        check_place(changed, change.new_path, where)
        if change.old_path != change.new_path and change.new_path in changed:
            raise DoesNotApply(f"{change.new_path} exists already", where=where)
        changed.set(change.new_path, entry)
    return changed, tuple(outcome for _, _, outcome in results)


def apply_change(
    tree: Tree, change: FilePatch, name: str, keep_context: int | None = None
) -> tuple[FilePatch, Entry | None, Outcome]:
    """The new entry of one changed file (None when it is deleted), with its blob written to the tree's store."""
    where = f"{name}:{change.at}"
    old = b""
    mode = change.new_mode or FILE
    stale = False
    if change.old_path is not None:
        entry = tree.get(change.old_path)
        if entry is None:
            raise DoesNotApply(f"{change.old_path} does not exist", where=where)
        if (entry.mode == SYMLINK) != (SYMLINK in (change.old_mode, change.new_mode)) or entry.mode not in (
            FILE,
            EXECUTABLE,
            SYMLINK,
        ):
            raise DoesNotApply(
                f"{change.old_path} is of another kind (mode {entry.mode}) than the patch says", where=where
            )
        if change.old_mode is not None and change.old_mode != entry.mode:
            raise DoesNotApply(
                f"{change.old_path} has mode {entry.mode}, the patch says {change.old_mode}", where=where
            )
        mode = change.new_mode or entry.mode
        stale = change.old_oid is not None and not entry.oid.startswith(change.old_oid)
        old = tree.store.read(entry.oid, "blob")
    data, placed = _content(change, old, name, keep_context, stale)
    outcome = Outcome(change, placed, stale)
    if change.new_path is None:
        if data:
            raise DoesNotApply(f"{change.path} is to be deleted but has more lines than the patch removes", where=where)
        return change, None, outcome
    if mode == SYMLINK:
        check_link_target(change.new_path, data, where)
    return change, Entry(mode, tree.store.write_blob(data)), outcome


def _content(
    change: FilePatch, old: bytes, name: str, keep_context: int | None, stale: bool
) -> tuple[bytes, tuple[Placed, ...]]:
    where = f"{name}:{change.at}"
    if change.binary is not None:
        if stale:
            raise DoesNotApply(
                f"{change.path} is binary and differs from the one that the patch was made for", where=where
            )
        forward = change.binary[0]
        return forward.apply(old), ()
    found = apply_hunks(old, change.hunks, keep_context)
    if isinstance(found, Hunk):
        near = nearest_hint(split_lines(old), found)
        raise DoesNotApply(
            f"{change.path}: a hunk does not match at line {found.old_start}", where=f"{name}:{found.at}", hint=near
        )
    return found


def nearest_hint(lines: list[bytes], hunk: Hunk) -> str:
    """What stops a hunk, in words: the first line that differs at the place where most of it fits."""
    old = hunk.old
    if not old:
        return "the file has content already"
    best, best_score, first = 0, -1, 0
    wanted = hunk.old_start - 1
    for at in sorted(range(max(1, len(lines))), key=lambda at: abs(at - wanted))[:4000]:
        same = [i < len(lines) and lines[i] == text for i, text in enumerate(old, at)]
        if sum(same) > best_score:
            best, best_score, first = at, sum(same), same.index(False) if False in same else 0
    line = lines[best + first] if best + first < len(lines) else b"(end of file)"

    def show(text: bytes) -> str:
        return repr(text.decode("utf-8", "replace").rstrip("\n"))[:90]

    if line == old[first]:
        return "its lines are there, but written by another hunk or not at the file's start or end where it must go"
    return f"line {best + first + 1} is {show(line)}, the patch wants {show(old[first])}"
