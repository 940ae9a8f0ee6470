"""A merged text as a sequence of pieces: settled lines, and hunks in which the sides disagree. Rendering with diff3 markers, and reading them back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

#: Lines with their ends.
Lines = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Hunk:
    """A place where ours and theirs both changed the base."""

    ours: Lines
    base: Lines
    theirs: Lines


Piece = Lines | Hunk
Pieces = tuple[Piece, ...]


class Labels(NamedTuple):
    """What stands behind the markers."""

    ours: str = "ours (downstream)"
    base: str = "base (translated)"
    theirs: str = "theirs (translated)"


def lines_of(data: bytes) -> Lines:
    """Lines, split at newlines only (a lone carriage return or form feed is content)."""
    if not data:
        return ()
    parts = data.split(b"\n")
    last = parts.pop()
    lines = [part + b"\n" for part in parts]
    if last:
        lines.append(last)
    return tuple(lines)


def hunks_of(pieces: Iterable[Piece]) -> list[Hunk]:
    """The hunks, in order; people number them from 1."""
    return [piece for piece in pieces if isinstance(piece, Hunk)]


def compact(pieces: Iterable[Piece]) -> Pieces:
    """The same text with neighbouring settled lines joined and empty pieces dropped."""
    result: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, Hunk):
            result.append(piece)
        elif piece:
            if result and not isinstance(result[-1], Hunk):
                result[-1] = result[-1] + piece
            else:
                result.append(piece)
    return tuple(result)


def replace_hunks(pieces: Iterable[Piece], change: Callable[[Hunk], Iterable[Piece]]) -> Pieces:
    """Each hunk replaced by other pieces."""
    result: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, Hunk):
            result.extend(change(piece))
        else:
            result.append(piece)
    return compact(result)


def choose(pieces: Iterable[Piece], choices: Mapping[int, bytes]) -> Pieces:
    """Hunks with a choice (by number, from 1) settled; the others stay."""
    numbers = iter(range(1, 1 << 30))

    def settle(hunk: Hunk) -> Iterable[Piece]:
        chosen = choices.get(next(numbers))
        return (hunk,) if chosen is None else (lines_of(chosen),)

    return replace_hunks(pieces, settle)


def side(pieces: Iterable[Piece], name: str) -> bytes:
    """The whole text with one side (``ours``, ``base`` or ``theirs``) taken in every hunk."""
    return b"".join(line for piece in pieces for line in (getattr(piece, name) if isinstance(piece, Hunk) else piece))


def render(pieces: Iterable[Piece], labels: Labels) -> bytes:
    """The text with diff3 markers, as git writes them."""
    ours, base, theirs = (label.encode("utf-8", "surrogateescape") for label in labels)
    result: list[bytes] = []
    for piece in pieces:
        if isinstance(piece, Hunk):
            result += [b"<<<<<<< %s\n" % ours, *_ended(piece.ours), b"||||||| %s\n" % base, *_ended(piece.base)]
            result += [b"=======\n", *_ended(piece.theirs), b">>>>>>> %s\n" % theirs]
        else:
            result.extend(piece)
    return b"".join(result)


def _ended(lines: Sequence[bytes]) -> Sequence[bytes]:
    if lines and not lines[-1].endswith(b"\n"):
        return [*lines[:-1], lines[-1] + b"\n"]
    return lines


def parse_conflicts(data: bytes, size: int = 7) -> Pieces:
    """The pieces of a text with diff3 markers (``size`` characters long). What is not a whole, well-formed conflict stays text.

    A person may have edited the file in between: markers without a base part give a hunk with an empty base.
    """
    return compact(_parse(lines_of(data), size))


def _parse(lines: Lines, size: int) -> Iterator[Piece]:
    opening, middle, closing = b"<" * size + b" ", b"=" * size, b">" * size + b" "
    bar = b"|" * size
    position = start = 0
    while position < len(lines):
        if not lines[position].startswith(opening):
            position += 1
            continue
        parts: dict[str, list[bytes]] = {"ours": [], "base": [], "theirs": []}
        current, scan, closed = "ours", position + 1, False
        while scan < len(lines):
            line = lines[scan]
            if line.startswith(closing) and current == "theirs":
                closed = True
                break
            if line.startswith(opening):
                break
            if current == "ours" and (line.startswith(bar + b" ") or line.rstrip(b"\r\n") == bar):
                current = "base"
            elif current in ("ours", "base") and line.rstrip(b"\r\n") == middle:
                current = "theirs"
            else:
                parts[current].append(line)
            scan += 1
        if closed:
            yield lines[start:position]
            yield Hunk(tuple(parts["ours"]), tuple(parts["base"]), tuple(parts["theirs"]))
            position = start = scan + 1
        else:
            position += 1
    yield lines[start:]
