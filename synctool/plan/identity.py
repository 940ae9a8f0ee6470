"""Which pull request a commit came from, by what its own message says and who wrote it, with a stated confidence.

A forge can confirm or supply a number (see ``synctool.forge``); everything here is pure and offline.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from synctool.git.commits import Commit
from synctool.plan.model import Change, Confidence, Identity

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
