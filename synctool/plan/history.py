"""What downstream's own history records: trailers of earlier syncs, back-outs of those syncs, prose claims, and the edits to compare with.

Only commits that upstream does not contain are looked at. A sync that was reverted does not count, and counts again when its revert was reverted.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from synctool.git.commits import Commit, read_commits
from synctool.git.repo import Repo
from synctool.plan.reverts import claim_of, target_of

# Squash merges put the messages of many commits into one, so trailers count on any line, not only in the last paragraph.
_COMMIT = re.compile(r"^Upstream-Commit: *([0-9a-f]{7,64})\b", re.MULTILINE | re.IGNORECASE)
_PR = re.compile(r"^Upstream-PR: *\S*?#?(\d{1,9})\b", re.MULTILINE | re.IGNORECASE)
_CHERRY = re.compile(r"^\(cherry picked from commit ([0-9a-f]{7,64})\)", re.MULTILINE)
_GROUP = r"#\d{1,9}(?:(?:\s*[,/&]\s*|\s+and\s+)#\d{1,9})*"


class Recorded(NamedTuple):
    """One trailer: the downstream commit that carries it and the key that it has."""

    downstream: str
    key: str


@dataclass(frozen=True)
class History:
    """Records of the downstream commits that count (``alive``), oldest first.

    ``undone`` maps a downstream commit that was taken back to the commit that did so. ``by_commit`` has full or short upstream ids, ``by_pr`` upstream
    numbers. ``claims`` are mentions in prose such as "slime #2185".
    """

    alive: tuple[Commit, ...] = ()
    undone: dict[str, str] = field(default_factory=dict)
    by_commit: dict[str, Recorded] = field(default_factory=dict)
    by_pr: dict[int, Recorded] = field(default_factory=dict)
    undone_commit: dict[str, Recorded] = field(default_factory=dict)
    undone_pr: dict[int, Recorded] = field(default_factory=dict)
    claims: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def recorded(self, oid: str, number: int | None) -> Recorded | None:
        """The record of an upstream change, by id or by number."""
        return _lookup(self.by_commit, self.by_pr, oid, number)

    def taken_back(self, oid: str, number: int | None) -> tuple[Recorded, str] | None:
        """The record of an upstream change whose sync was reverted, and the commit that reverted it."""
        record = _lookup(self.undone_commit, self.undone_pr, oid, number)
        return (record, self.undone[record.downstream]) if record else None


def _lookup(
    commits: dict[str, Recorded], numbers: dict[int, Recorded], oid: str, number: int | None
) -> Recorded | None:
    # Ids in trailers may be short; dictionaries of a few hundred entries are scanned by their distinct lengths.
    for length in {len(key) for key in commits}:
        if (found := commits.get(oid[:length])) is not None:
            return found
    return numbers.get(number) if number is not None else None


def read_history(repo: Repo, downstream: str, upstream: str, *, upstream_name: str | None = None) -> History:
    """The records of ``downstream`` (a full id), leaving out all that ``upstream`` contains."""
    oids = repo.text("rev-list", "--topo-order", "--reverse", downstream, f"^{upstream}", "--").split()
    commits = read_commits(repo.objects, oids)
    parents = {commit.oid: commit.parents for commit in commits}
    first_parents: set[str] = set()
    oid = downstream
    while oid in parents:
        first_parents.add(oid)
        oid = next(iter(parents[oid]), "")
    return summarise(commits, first_parents, upstream_name)


def summarise(commits: Sequence[Commit], first_parents: set[str], upstream_name: str | None) -> History:
    """The records in a list of commits, oldest first (pure)."""
    undone = find_undone(commits, first_parents)
    by_commit: dict[str, Recorded] = {}
    by_pr: dict[int, Recorded] = {}
    undone_commit: dict[str, Recorded] = {}
    undone_pr: dict[int, Recorded] = {}
    claims: defaultdict[int, list[str]] = defaultdict(list)
    name = (upstream_name or "").lower()
    prose = re.compile(rf"\b{re.escape(name)}[ -]?(?:PR ?)?({_GROUP})", re.IGNORECASE)
    for commit in commits:
        to_commit, to_pr = (undone_commit, undone_pr) if commit.oid in undone else (by_commit, by_pr)
        # A word is found far sooner than a regex that begins with it, and most messages have none of them.
        lowered = commit.message.lower()
        has_trailer = "upstream-" in lowered
        named = [(m, "Upstream-Commit") for m in _COMMIT.findall(commit.message)] if has_trailer else []
        if "(cherry picked from commit " in lowered:
            named += [(m, "cherry picked from") for m in _CHERRY.findall(commit.message)]
        for oid, key in named:
            to_commit[oid] = Recorded(commit.oid, key)
        if has_trailer and not named:  # ids say exactly what was taken; numbers beside them add nothing
            for number in _PR.findall(commit.message):
                to_pr[int(number)] = Recorded(commit.oid, "Upstream-PR")
        if name and name in lowered and commit.oid not in undone:
            for group in prose.findall(commit.message):
                for number in re.findall(r"\d+", group):
                    if commit.oid not in claims[int(number)]:
                        claims[int(number)].append(commit.oid)
    alive = tuple(commit for commit in commits if commit.oid not in undone)
    return History(alive, undone, by_commit, by_pr, undone_commit, undone_pr, {n: tuple(c) for n, c in claims.items()})


def find_undone(commits: Sequence[Commit], first_parents: set[str]) -> dict[str, str]:
    """Commits whose effect was taken back, each with the commit that did so.

    By claim (a revert's message) or by fact: a first-parent commit whose whole tree equals that of an earlier one undid all between them. A revert that
    was itself reverted takes nothing back.
    """
    undone: dict[str, str] = {}
    places = {commit.oid: place for place, commit in enumerate(commits)}
    took_back: dict[str, list[str]] = {}
    trees: dict[str, int] = {}
    chain: list[str] = []
    for place, commit in enumerate(commits):
        victims: list[str] = []
        earlier = commits[:place]
        if claim := claim_of(commit):
            for sha in claim.commits:
                victims += [c.oid for c in earlier if c.oid.startswith(sha)]
            if not claim.commits and (target := target_of(claim, earlier)) is not None:
                victims.append(earlier[target].oid)
        if commit.oid in first_parents:
            if commit.tree in trees:
                victims += chain[trees[commit.tree] + 1 :]
            trees[commit.tree] = len(chain)
            chain.append(commit.oid)
        for victim in _with_branches(victims, commits, places):
            for restored in took_back.get(victim, ()):
                undone.pop(restored, None)
            undone[victim] = commit.oid
            took_back.setdefault(commit.oid, []).append(victim)
    return undone


def _with_branches(victims: Iterable[str], commits: Sequence[Commit], places: dict[str, int]) -> list[str]:
    """The commits, newest first, and for merges among them all that came in by the other parents."""
    result: dict[str, None] = {}
    for victim in sorted(set(victims), key=lambda oid: places[oid], reverse=True):
        result[victim] = None
        parents = commits[places[victim]].parents
        if len(parents) < 2:
            continue
        stay = _reach(parents[:1], commits, places)
        result.update(
            dict.fromkeys(
                sorted(_reach(parents[1:], commits, places) - stay, key=lambda oid: places[oid], reverse=True)
            )
        )
    return list(result)


def _reach(starts: Iterable[str], commits: Sequence[Commit], places: dict[str, int]) -> set[str]:
    seen: set[str] = set()
    stack = [oid for oid in starts if oid in places]
    while stack:
        oid = stack.pop()
        if oid not in seen:
            seen.add(oid)
            stack += [parent for parent in commits[places[oid]].parents if parent in places]
    return seen
