"""Text as tokens: words, numbers, blanks, single signs. What token-level comparison and merging stand on."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence

_TOKEN = re.compile(r"--?[A-Za-z][\w-]*|[A-Za-z_]\w*|\d+|\n|[^\S\n]+|[^\s\w]", re.ASCII)
_IDENTIFIER = re.compile(r"-{0,2}[A-Za-z_]\w{2,}(?:-\w+)*", re.ASCII)

Opcode = tuple[str, int, int, int, int]


def text_of(data: bytes) -> str:
    """Bytes as text, whatever they are; ``bytes_of`` is the exact inverse."""
    return data.decode("utf-8", "surrogateescape")


def bytes_of(text: str) -> bytes:
    """The inverse of ``text_of``."""
    return text.encode("utf-8", "surrogateescape")


def tokens(text: str) -> list[str]:
    """All of the text in tokens: joining them gives it back."""
    found: list[str] = []
    position = 0
    for match in _TOKEN.finditer(text):
        if match.start() > position:  # letters of other scripts and the like: one token a character
            found.extend(text[position : match.start()])
        found.append(match.group())
        position = match.end()
    found.extend(text[position:])
    return found


def is_identifier(token: str) -> bool:
    """A name or a flag of at least three letters, digits or underscores."""
    return _IDENTIFIER.fullmatch(token) is not None


def opcodes(old: Sequence[object], new: Sequence[object]) -> list[Opcode]:
    """Edit operations between two sequences, as ``difflib`` names them, without its popularity heuristic."""
    return list(difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes())  # type: ignore[arg-type]


def changed_blocks(old: Sequence[object], new: Sequence[object]) -> Iterator[Opcode]:
    """The operations that are no ``equal``."""
    return (code for code in opcodes(old, new) if code[0] != "equal")


def alike(old: Sequence[object], new: Sequence[object]) -> float:
    """The share of elements that two sequences have in common and in order, 0 to 1."""
    return difflib.SequenceMatcher(None, old, new, autojunk=False).ratio()  # type: ignore[arg-type]


def nearest(line: str, candidates: Sequence[str], least: float) -> int | None:
    """The index of the candidate most alike (ratio above ``least``), or None."""
    matcher = difflib.SequenceMatcher(None, autojunk=False)
    matcher.set_seq2(line)
    best, found = least, None
    for number, candidate in enumerate(candidates):
        matcher.set_seq1(candidate)
        if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best and (ratio := matcher.ratio()) > best:
            best, found = ratio, number
    return found
