"""Which pull request a commit came from, by what its own message says and who wrote it, with a stated confidence.

A forge can confirm or supply a number (see ``synctool.forge``); everything here is pure and offline.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from synctool.git.commits import Commit
from synctool.plan.model import Change, Confidence, Identity
from synctool.progress import Progress, silent

if TYPE_CHECKING:
    from synctool.forge.base import Forge

#: The number that the forge appends on a squash merge stands last, outside any quotation: ``Revert "Fix (#7)" (#9)`` is 9.
SQUASH = re.compile(r"\(#(\d{1,9})\)$")
MERGE = re.compile(r"^Merge pull request #(\d{1,9}) from \S+")
TRAILER_KEYS = ("pull-request", "pull-request-url", "pr-url", "pr", "upstream-pr")
#: ``#12``, ``!12``, ``owner/name#12`` or a web address that ends in the number.
TRAILER_VALUE = re.compile(r"^(?:\S*?[#!]|https?://\S+/(?:pull|pulls|merge_requests)/)?(\d{1,9})/?$")
LINK = re.compile(r"https?://[\w.-]+/(?P<slug>[\w.-]+/[\w.-]+)/pull/(?P<number>\d{1,9})\b")
#: A subject that repeats another change's title, number included.
BORROWED = re.compile(r"\b(back-?port|cherry[ -]?pick|re-?land|re-?apply|revert)", re.IGNORECASE)


def identify(commit: Commit, slug: str | None = None) -> Identity | None:
    """The pull request of a commit from its message, or None.

    ``slug`` is upstream's ``owner/name``: links to other projects are ignored, and without it all links are.
    """
    subject = commit.subject
    written_by_forge = commit.committer.email == "noreply@github.com"
    if (match := MERGE.match(subject)) is not None:
        if len(commit.parents) > 1:
            return Identity(int(match[1]), Confidence.HIGH, "merge")
        return Identity(int(match[1]), Confidence.LOW, "merge", "merge subject on a commit that is not a merge")
    if (match := SQUASH.search(subject)) is not None:
        if written_by_forge:
            return Identity(int(match[1]), Confidence.HIGH, "squash")
        return Identity(int(match[1]), Confidence.MEDIUM, "squash", "not committed by the forge")
    for key, value in commit.trailers:
        if key.lower() in TRAILER_KEYS and (match := TRAILER_VALUE.match(value)) is not None:
            return Identity(int(match[1]), Confidence.HIGH, "trailer")
    if slug is not None:
        numbers = {int(m["number"]) for m in LINK.finditer(commit.message) if m["slug"].lower() == slug.lower()}
        if len(numbers) == 1:
            return Identity(numbers.pop(), Confidence.LOW, "link", "only linked in the message")
    return None


def identify_all(changes: Sequence[Change], slug: str | None = None) -> list[Change]:
    """All changes with their identity. Where two claim one number, the later or borrowing one is lowered and says whose it is."""
    named = [replace(change, identity=identify(change.commit, slug)) for change in changes]
    owner: dict[int, int] = {}
    for place, change in enumerate(named):
        if change.identity is None:
            continue
        number = change.identity.number
        first = owner.setdefault(number, place)
        if first == place:
            continue
        # A back-port may precede the original only on another branch; in one history the plain title owns the number.
        loser = place
        if BORROWED.search(named[first].commit.subject) and not BORROWED.search(change.commit.subject):
            owner[number], loser = place, first
        winner = named[owner[number]]
        lowered = replace(
            named[loser].identity or change.identity,
            confidence=Confidence.LOW,
            note=f"{winner.oid[:9]} claims #{number} too",
        )
        named[loser] = replace(named[loser], identity=lowered)
    return named


def confirm(changes: Sequence[Change], forge: Forge, progress: Progress = silent) -> list[Change]:
    """Changes with their numbers asked from a forge, where the commit alone leaves doubt.

    Only changes without a number, or with less than high confidence, are asked for: each costs a request. A pull request counts when the forge says that
    it was merged as this very commit, or when it is the only merged one that contains it.

    Raises:
        RateLimited, EnvironmentFailure: from the forge.
    """
    doubtful = [
        n
        for n, c in enumerate(changes)
        if c.identity is None or c.identity.confidence in (Confidence.MEDIUM, Confidence.LOW)
    ]
    result = list(changes)
    for done, place in enumerate(doubtful):
        change = changes[place]
        progress(done, len(doubtful), change.oid[:9])
        merged = [pull for pull in forge.pulls_of_commit(change.oid) if pull.state == "merged"]
        exact = [pull for pull in merged if pull.merge_commit == change.oid]
        if exact:
            result[place] = replace(change, identity=Identity(exact[0].number, Confidence.CERTAIN, "forge"))
        elif len(merged) == 1:
            note = "contained in this pull request, by another commit id"
            result[place] = replace(change, identity=Identity(merged[0].number, Confidence.HIGH, "forge", note))
    return result
