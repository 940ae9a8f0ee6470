"""Reverts: what a commit says it takes back, and which pairs of a range cancel out.

A pair is collapsed only when that changes nothing else: the revert must be the exact inverse of its target, and no change in between may stand on the
target's lines. Everything else stays as it is, with a remark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from synctool.git.commits import Commit

_BY_SHA = re.compile(r"\bThis reverts commit ([0-9a-f]{7,64})", re.IGNORECASE)
_QUOTED = re.compile(r'^(?P<word>Revert|Reapply|Re-?land) "(?P<title>.*)"(?: \(#\d+\))?$', re.IGNORECASE)
_PREFIXED = re.compile(r"^\[?(?P<word>revert|reapply|re-?land)\b[\]:]*\s*(?P<title>.+)$", re.IGNORECASE)
_NUMBER = re.compile(r"\s*\(#(\d{1,9})\)$")


class Claim(NamedTuple):
    """What a commit says it takes back or brings again: ids (possibly short), a title without its number, and the number named with the title."""

    commits: tuple[str, ...]
    title: str
    number: int | None
    again: bool = False

    def __bool__(self) -> bool:
        return bool(self.commits or self.title)


def claim_of(commit: Commit) -> Claim:
    """The claim in a commit's subject and body; empty (false) when there is none.

    ``Reapply "x"`` (git's word since 2.43 for a revert of a revert) claims to bring x again, which takes back ``Revert "x"``.
    """
    subject = commit.subject
    match = _QUOTED.match(subject)
    if match is not None:
        title, number = split_number(match["title"])
    else:
        match = _PREFIXED.match(subject)
        if match is None:
            # A body that only quotes a revert among other work (a squash of many commits) is no revert.
            return Claim((), "", None)
        # Here the number may be the commit's own or, on a hand-made revert, the target's: the resolver tries both.
        title, number = split_number(match["title"])
    again = not match["word"].lower().startswith("revert")
    commits = tuple(dict.fromkeys(_BY_SHA.findall(commit.message)))
    if not again and subject.lower().startswith("[revert revert]"):
        again, title = True, re.sub(r"^revert\]\s*", "", title, flags=re.IGNORECASE)
    return Claim(commits, title, number, again)


@lru_cache(maxsize=1 << 14)
def split_number(title: str) -> tuple[str, int | None]:
    """``Fix (#7)`` as ``("Fix", 7)``."""
    match = _NUMBER.search(title)
    return (title[: match.start()], int(match[1])) if match else (title, None)


def target_of(claim: Claim, earlier: Sequence[Commit]) -> int | None:
    """The place in ``earlier`` (oldest first) of the one commit that is taken back, newest match first; None when it is not there.

    Ids decide; without one, the number named with the title, then the title itself.
    """
    if len(claim.commits) > 1:
        return None
    for sha in claim.commits:
        return next((n for n in range(len(earlier) - 1, -1, -1) if earlier[n].oid.startswith(sha)), None)
    if not claim.title:
        return None
    wanted = f'Revert "{claim.title}' if claim.again else None
    by_title = None
    for place in range(len(earlier) - 1, -1, -1):
        subject = earlier[place].subject
        if wanted is not None:
            if subject.startswith(wanted):
                return place
            continue
        title, number = split_number(subject)
        if claim.number is not None and number == claim.number and not claim_of(earlier[place]):
            return place
        if by_title is None and title == claim.title:
            by_title = place
            if claim.number is None:
                break
    return by_title


class Collapse(NamedTuple):
    """A revert at place ``revert`` cancels the change at ``target``."""

    target: int
    revert: int


class Kept(NamedTuple):
    """A revert that was not collapsed, and why."""

    target: int
    revert: int
    why: str


def pair_reverts(
    commits: Sequence[Commit],
    is_inverse: Callable[[int, int], bool],
    in_between: Callable[[int, int], list[int]],
    eligible: Callable[[int, int], bool] = lambda target, revert: True,
) -> tuple[list[Collapse], list[Kept]]:
    """The pairs of a range that cancel out, and the reverts that stay.

    ``is_inverse(revert, target)`` compares edits; ``in_between(target, revert)`` gives the places between the two that stand
    on the target's lines, directly or through one another; ``eligible(target, revert)`` is false for a pair that must stay. Reverts are taken
    oldest first: of a change, its revert and its re-land, the first two collapse and the third stays.
    """
    collapsed: list[Collapse] = []
    kept: list[Kept] = []
    gone: set[int] = set()
    for place, commit in enumerate(commits):
        claim = claim_of(commit)
        if not claim:
            continue
        target = target_of(claim, commits[:place])
        if target is None or target in gone or not eligible(target, place):
            continue
        blockers = [n for n in in_between(target, place) if n not in gone]
        if blockers:
            kept.append(Kept(target, place, f"{commits[blockers[0]].oid[:9]} in between builds on it"))
        elif not is_inverse(place, target):
            kept.append(Kept(target, place, "it is not its exact inverse"))
        else:
            collapsed.append(Collapse(target, place))
            gone |= {target, place}
    return collapsed, kept
