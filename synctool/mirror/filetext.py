"""Three texts to one: line ends and the final newline as attributes of their own, learned vocabulary, git's merge, then what can be settled in each hunk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from synctool.mirror.learned import learn, substitute
from synctool.mirror.pieces import Hunk, Lines, Pieces, lines_of, replace_hunks
from synctool.mirror.resolve.tokens import bytes_of, text_of
from synctool.mirror.textmerge import TextMerger

#: As git does: a NUL in the first bytes makes a file binary.
_PROBE = 8000

#: Resolvers that leave an upstream edit out. Their hunks are handed on, to be filed.
DROPPING = ("removed here", "rewritten here")

#: A resolver's answer for one hunk: pieces (which may hold smaller hunks), or None.
Resolver = Callable[[Hunk], Pieces | None]


def is_binary(data: bytes) -> bool:
    """Whether git would call this binary."""
    return b"\0" in data[:_PROBE]


@dataclass(frozen=True, slots=True)
class TextMerge:
    """A merged text: its pieces, the names of the resolvers that settled something, and the hunks of which they left upstream's edit out."""

    pieces: Pieces
    settled: tuple[str, ...] = ()
    dropped: tuple[Hunk, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether no hunk is left."""
        return not any(isinstance(piece, Hunk) for piece in self.pieces)


def _crlf(data: bytes) -> bool | None:
    """Whether all lines end in CRLF (True) or none does (False); None for a mixture."""
    returns = data.count(b"\r\n")
    if not returns:
        return False
    return True if returns == data.count(b"\n") else None


def _three_way(ours: bool, base: bool, theirs: bool) -> bool:
    return theirs if ours == base else ours


def merge_text(
    merger: TextMerger, ours: bytes, base: bytes, theirs: bytes, resolvers: tuple[tuple[str, Resolver], ...]
) -> TextMerge:
    """Merge three texts (none binary). ``resolvers`` are tried in order on each hunk, and again on the hunks that they leave."""
    if ours == theirs or base == theirs:
        return TextMerge((lines_of(ours),))
    if ours == base:
        return TextMerge((lines_of(theirs),))
    ends = [_crlf(data) for data in (ours, base, theirs)]
    crlf = False
    if None not in ends and any(ends):
        # One side converted the whole file: that is a change of one attribute, not of every line.
        known = [bool(end) for end, data in zip(ends, (ours, base, theirs), strict=True)]
        if b"\n" not in base:
            known[1] = known[0]
        crlf = _three_way(*known)
        ours, base, theirs = (data.replace(b"\r\n", b"\n") for data in (ours, base, theirs))
    closed = [not data or data.endswith(b"\n") for data in (ours, base, theirs)]
    closing = _three_way(*closed)
    if not all(closed):
        ours, base, theirs = (
            data if data.endswith(b"\n") or not data else data + b"\n" for data in (ours, base, theirs)
        )
    if base and ours != base and len(base) + len(ours) < 2 << 20:
        learned = learn(text_of(base), text_of(ours))
        if learned:
            base, theirs = (bytes_of(substitute(text_of(data), learned)) for data in (base, theirs))
    pieces = merger.merge(ours, base, theirs)
    settled: list[str] = []
    dropped: list[Hunk] = []
    if any(isinstance(piece, Hunk) for piece in pieces):
        pieces = replace_hunks(pieces, lambda hunk: _resolve(hunk, resolvers, settled, dropped))
    if not closing and pieces and not isinstance(pieces[-1], Hunk):
        pieces = (*pieces[:-1], _open_ended(pieces[-1]))
    if crlf:
        pieces = tuple(_with_crlf(piece) for piece in pieces)
    return TextMerge(pieces, tuple(settled), tuple(dropped))


def _resolve(
    hunk: Hunk, resolvers: tuple[tuple[str, Resolver], ...], settled: list[str], dropped: list[Hunk]
) -> Pieces:
    for name, resolver in resolvers:
        pieces = resolver(hunk)
        if pieces is not None and pieces != (hunk,):
            settled.append(name)
            if name in DROPPING:
                dropped.append(hunk)
            return replace_hunks(pieces, lambda inner: _resolve(inner, resolvers, settled, dropped))
    return (hunk,)


def _open_ended(lines: Lines) -> Lines:
    return (*lines[:-1], lines[-1].removesuffix(b"\n")) if lines else lines


def _with_crlf(piece: Lines | Hunk) -> Lines | Hunk:
    if isinstance(piece, Hunk):
        return Hunk(*(tuple(_crlf_lines(side)) for side in (piece.ours, piece.base, piece.theirs)))
    return tuple(_crlf_lines(piece))


def _crlf_lines(lines: Lines) -> list[bytes]:
    return [line[:-1] + b"\r\n" if line.endswith(b"\n") else line for line in lines]
