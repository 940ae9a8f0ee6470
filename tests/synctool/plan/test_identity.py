"""Pull request numbers from commits alone, and with a forge."""

from __future__ import annotations

import pytest

from synctool.forge.base import PullRequest
from synctool.git.commits import Commit, Person
from synctool.plan.identity import confirm, identify, identify_all
from synctool.plan.model import Change

ADA = Person("Ada", "ada@example.org", 0)
FORGE = Person("GitHub", "noreply@github.com", 0)


def commit(message: str, *, parents: int = 1, by_forge: bool = True, oid: str = "a" * 40) -> Commit:
    return Commit(oid, "t" * 40, tuple("p" * 40 for _ in range(parents)), ADA, FORGE if by_forge else ADA, message)


@pytest.mark.parametrize(
    ("message", "number", "confidence", "source"),
    [
        ("Fix the wick (#12)", 12, "high", "squash"),
        ("Fix the wick (#12)\n\n* first\n\n* second (#3)", 12, "high", "squash"),
        ("Add extras (#302) (#303)", 303, "high", "squash"),
        ('Revert "Fix the wick (#12)" (#14)', 14, "high", "squash"),
        ("[docker] cherry pick the fix (#1691)", 1691, "high", "squash"),
        ("Fix\n\nbody\n\nPR-URL: https://github.com/lamps/lantern/pull/77\n", 77, "high", "trailer"),
        ("Fix\n\nbody\n\nUpstream-PR: lamps/lantern#78\nSigned-off-by: Ada <a@b.c>\n", 78, "high", "trailer"),
        ("Fix\n\nSee https://github.com/lamps/lantern/pull/5 for more.", 5, "low", "link"),
    ],
)
def test_routes(message, number, confidence, source):
    found = identify(commit(message), "lamps/lantern")
    assert found is not None
    assert (found.number, found.confidence, found.source) == (number, confidence, source)


@pytest.mark.parametrize(
    "message",
    [
        "bugfix",
        'Revert "Fix the wick (#12)"',
        "add back the script for #1344",
        "Fix (#12) and more",
        "See https://github.com/other/project/pull/5",
        "Links\n\nhttps://github.com/lamps/lantern/pull/5 and https://github.com/lamps/lantern/pull/6",
    ],
)
def test_no_number(message):
    assert identify(commit(message), "lamps/lantern") is None


def test_links_need_a_slug():
    assert identify(commit("Fix\n\nhttps://github.com/lamps/lantern/pull/5")) is None


def test_merge_subject_needs_a_merge():
    message = "Merge pull request #9 from ada/wick"
    real, fake = identify(commit(message, parents=2)), identify(commit(message))
    assert real is not None
    assert fake is not None
    assert (real.number, real.confidence) == (9, "high")
    assert (fake.number, fake.confidence) == (9, "low")


def test_typed_by_hand_is_less_sure():
    found = identify(commit("Fix (#12)", by_forge=False))
    assert found is not None
    assert found.confidence == "medium"


def changes(*subjects: str) -> list[Change]:
    return [Change(commit(subject, oid=f"{n:040x}"), "p") for n, subject in enumerate(subjects)]


def test_a_number_claimed_twice():
    first, second = identify_all(changes("Fix (#12)", "Backport fix (#12)"))
    assert first.identity is not None
    assert second.identity is not None
    assert first.identity.confidence == "high"
    assert (second.identity.confidence, second.identity.note) == ("low", "000000000 claims #12 too")


def test_a_borrowing_subject_never_owns_the_number():
    first, second = identify_all(changes("Reapply fix (#12)", "Fix (#12)"))
    assert first.identity is not None
    assert second.identity is not None
    assert (first.identity.confidence, second.identity.confidence) == ("low", "high")


class FixedForge:
    name = "fixed"

    def __init__(self, answers: dict[str, tuple[PullRequest, ...]]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def pulls_of_commit(self, oid):
        self.asked.append(oid)
        return self.answers.get(oid, ())

    def pull(self, number):
        return None

    def pulls_of_head(self, oid):
        return ()

    def budget(self):
        return None


def test_a_forge_is_asked_only_where_there_is_doubt():
    listed = identify_all(changes("Fix (#12)", "bugfix", "cleanup", "docs"))
    merged = PullRequest(40, "bugfix", "merged", merge_commit=listed[1].oid)
    rebased = PullRequest(41, "cleanup", "merged", merge_commit="f" * 40)
    open_one = PullRequest(42, "docs", "open")
    forge = FixedForge({listed[1].oid: (open_one, merged), listed[2].oid: (rebased,), listed[3].oid: (open_one,)})
    found = [c.identity for c in confirm(listed, forge)]
    assert forge.asked == [c.oid for c in listed[1:]]
    assert [(i.number, str(i.confidence)) if i else None for i in found] == [
        (12, "high"),
        (40, "certain"),
        (41, "high"),
        None,
    ]
