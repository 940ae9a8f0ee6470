"""Resolvers that only propose: often right, and for a person to confirm. Each says what its proposal rests on."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from synctool.mirror.model import Proposal
from synctool.mirror.pieces import Hunk, Lines, Pieces, hunks_of
from synctool.mirror.refine import refine
from synctool.mirror.resolve.tokens import alike, bytes_of, changed_blocks, text_of, tokens

Canonical = Callable[[bytes], str]

_MOST_LINES = 40
_MOST_TOKENS = 2000
_FROM = re.compile(r"from (\S+) import (?:\(([\w, ]+?),? *\)|([\w, ]+))(?: *#.*)?")
_IMPORT = re.compile(r"import [\w.]+(?: as \w+)?")


def _settled(pieces: Pieces) -> list[bytes] | None:
    return None if hunks_of(pieces) else [line for piece in pieces if not isinstance(piece, Hunk) for line in piece]


def adjacent(hunk: Hunk, canonical: Canonical) -> Proposal | None:
    """Both sides' edits, where they touch but share no line."""
    lines = _settled(refine(hunk))
    if lines is None:
        return None
    return Proposal("adjacent", b"".join(lines), "the two sides edit neighbouring lines, none in common")


def token(hunk: Hunk, canonical: Canonical) -> Proposal | None:
    """Both sides' edits within the same lines, merged word by word."""
    texts = (hunk.ours, hunk.base, hunk.theirs)
    sides = [tuple(bytes_of(word) for word in _tokens(side)) for side in texts]
    if not all(sides) or max(map(len, texts)) > _MOST_LINES or max(map(len, sides)) > _MOST_TOKENS:
        return None
    merged = refine(Hunk(*sides))
    text = _settled(merged)
    if text is None or _crowded(*sides):
        return None
    return Proposal("token", b"".join(text), "the two sides edit other words of the same lines")


def _tokens(lines: Lines) -> list[str]:
    return tokens(text_of(b"".join(lines)))


def _crowded(ours: Sequence[bytes], base: Sequence[bytes], theirs: Sequence[bytes]) -> bool:
    """Whether edits of the two sides touch, or one of them leaves less than half of the words: then a word-by-word result is chance."""
    if min(alike(base, ours), alike(base, theirs)) < 0.5:
        return True
    mine = [(i1, i2) for _, i1, i2, _, _ in changed_blocks(base, ours)]
    yours = [(i1, i2) for _, i1, i2, _, _ in changed_blocks(base, theirs)]
    return any(a1 <= b2 and b1 <= a2 for a1, a2 in mine for b1, b2 in yours)


def imports(hunk: Hunk, canonical: Canonical) -> Proposal | None:
    """Hunks of Python imports alone, merged as sets of names."""
    sides = [_names(side) for side in (hunk.ours, hunk.base, hunk.theirs)]
    ours, base, theirs = sides
    if ours is None or base is None or theirs is None or not (ours or theirs):
        return None
    kept = [name for name in ours if name in theirs or name not in base]
    kept += [name for name in theirs if name not in base and name not in ours]
    modules: dict[str, list[str]] = {}
    plain = [name for module, name in kept if not module]
    for module, name in kept:
        if module:
            modules.setdefault(module, []).append(name)
    lines = [f"import {name}\n" for name in plain]
    lines += [
        f"from {module} import {', '.join(sorted(set(names), key=_isorted))}\n" for module, names in modules.items()
    ]
    return Proposal("imports", bytes_of("".join(lines)), "both sides change imports: merged as sets of names")


def _isorted(name: str) -> tuple[int, str]:
    """isort's order within a line: constants, classes, the rest."""
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2), name.lower()


def _names(lines: Lines) -> dict[tuple[str, str], None] | None:
    """(module, name) of each import, in order; None when something else stands there."""
    found: dict[tuple[str, str], None] = {}
    text = re.sub(r"\(\s*([^()]*?)\s*\)", lambda m: "(" + " ".join(m.group(1).split()) + ")", text_of(b"".join(lines)))
    for line in text.splitlines():
        if not line.strip():
            continue
        if (match := _FROM.fullmatch(line.rstrip())) is not None:
            for name in (match.group(2) or match.group(3)).split(","):
                found[(match.group(1), name.strip())] = None
        elif _IMPORT.fullmatch(line.rstrip()):
            found[("", line.strip()[7:])] = None
        else:
            return None
    return found


def replaced(hunk: Hunk, canonical: Canonical) -> Proposal | None:
    """Downstream put something of its own in the place of a few lines that upstream edits a little."""
    ours, base, theirs = ([canonical(line).strip() for line in side] for side in (hunk.ours, hunk.base, hunk.theirs))
    if len(base) < 3 or not ours or set(filter(None, ours)) & set(base) or alike(base, theirs) < 0.5:
        return None
    return Proposal(
        "replaced",
        b"".join(hunk.ours),
        "none of upstream's old lines is left here, and it edits less than half of them",
    )
