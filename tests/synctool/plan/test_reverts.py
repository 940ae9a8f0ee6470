"""Reverts: what messages claim, and that collapsing a pair changes nothing else."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from synctool.git.commits import Commit, Person
from synctool.plan.build import START, build_plan
from synctool.plan.model import Kind
from synctool.plan.reverts import claim_of, target_of

ADA = Person("Ada", "ada@example.org", 0)


def commit(message: str, oid: str = "a" * 40) -> Commit:
    return Commit(oid, "t" * 40, (), ADA, ADA, message)


@pytest.mark.parametrize(
    ("message", "title", "number", "again"),
    [
        ('Revert "Fix wick"', "Fix wick", None, False),
        ('Revert "Fix wick (#12)" (#14)', "Fix wick", 12, False),
        ('Revert "Fix "wick" field (#255)" (#256)', 'Fix "wick" field', 255, False),
        ('Reapply "Fix wick (#12)"', "Fix wick", 12, True),
        ("revert: sync through #7 (#338)", "sync through #7", 338, False),
        ("[Revert] Fix wick (#15)", "Fix wick", 15, False),
        ("[Revert revert] Fix wick (#16)", "Fix wick", 16, True),
    ],
)
def test_claims(message, title, number, again):
    claim = claim_of(commit(message))
    assert (claim.title, claim.number, claim.again) == (title, number, again)


@pytest.mark.parametrize(
    "message", ["Fix wick (#12)", "Reverting gears", "Add lamp\n\n* step\n\nThis reverts commit abcdef1234.\n"]
)
def test_no_claim(message):
    assert not claim_of(commit(message))


def test_targets():
    earlier = [
        commit("Fix (#1)", "1" * 40),
        commit("Fix (#2)", "2" * 40),
        commit('Revert "Fix (#2)" (#3)', "3" * 40),
    ]
    assert target_of(claim_of(commit('Revert "Fix (#1)" (#9)')), earlier) == 0
    assert target_of(claim_of(commit('Revert "Fix" (#9)')), earlier) == 1, "without a number the newest of that title"
    assert target_of(claim_of(commit(f'Revert "Fix"\n\nThis reverts commit {"1" * 12}.')), earlier) == 0
    assert target_of(claim_of(commit('Reapply "Fix (#2)" (#9)')), earlier) == 2
    assert target_of(claim_of(commit(f'Revert "Fix (#1)"\n\nThis reverts commit {"e" * 40}.')), earlier) is None, (
        "an id decides alone"
    )
    assert target_of(claim_of(commit('Revert "Other"')), earlier) is None


def plan(story, policy, words, tip, base=START):
    downstream = story.commit("downstream", {"own": "x\n"})
    return build_plan(story.repo, policy, words, base=base, through=tip, downstream=downstream)


def kinds(made):
    return [str(item.decision.kind) for item in made.items]


TEXT = [f"line {n}\n" for n in range(40)]


def edit(lines: list[str], at: int, text: str) -> list[str]:
    return [*lines[:at], text, *lines[at + 1 :]]


def test_pair_collapses_around_an_unrelated_change(story, policy, words):
    base = story.commit("base", {"f": "".join(TEXT)})
    one = edit(TEXT, 5, "five!\n")
    a = story.commit("Five (#1)", {"f": "".join(one)}, base)
    both = edit(one, 30, "thirty!\n")
    b = story.commit("Thirty (#2)", {"f": "".join(both)}, a)
    c = story.commit('Revert "Five" (#3)', {"f": "".join(edit(TEXT, 30, "thirty!\n"))}, b)
    made = plan(story, policy, words, c, base)
    assert kinds(made) == ["collapsed", "take", "collapsed"]
    assert made.items[0].decision.reason == "reverted by #3 in this range"
    assert made.items[2].decision.reason == "reverts #1 of this range"


def test_pair_stays_when_a_change_in_between_builds_on_it(story, policy, words):
    base = story.commit("base", {"f": "".join(TEXT)})
    one = edit(TEXT, 5, "five!\n")
    a = story.commit("Five (#1)", {"f": "".join(one)}, base)
    b = story.commit("Six (#2)", {"f": "".join(edit(one, 6, "six!\n"))}, a)
    c = story.commit('Revert "Five" (#3)', {"f": "".join(edit(TEXT, 6, "six!\n"))}, b)
    made = plan(story, policy, words, c, base)
    assert kinds(made) == ["take", "take", "take"]
    assert "builds on it" in made.items[2].notes[0]


def test_a_revert_that_does_more_is_an_ordinary_change(story, policy, words):
    base = story.commit("base", {"f": "".join(TEXT)})
    a = story.commit("Five (#1)", {"f": "".join(edit(TEXT, 5, "five!\n"))}, base)
    c = story.commit('Revert "Five" (#3)', {"f": "".join(edit(TEXT, 20, "more\n"))}, a)
    made = plan(story, policy, words, c, base)
    assert kinds(made) == ["take", "take"]
    assert "not its exact inverse" in made.items[1].notes[0]


def test_reland_keeps_the_third(story, policy, words):
    base = story.commit("base", {"f": "".join(TEXT)})
    with_it = {"f": "".join(edit(TEXT, 5, "five!\n"))}
    a = story.commit("Five (#1)", with_it, base)
    b = story.commit('Revert "Five (#1)" (#2)', {"f": "".join(TEXT)}, a)
    c = story.commit('Reapply "Five (#1)" (#3)', with_it, b)
    assert kinds(plan(story, policy, words, c, base)) == ["collapsed", "collapsed", "take"]
    d = story.commit('Revert "Reapply "Five (#1)"" (#4)', {"f": "".join(TEXT)}, c)
    assert kinds(plan(story, policy, words, d, base)) == ["collapsed"] * 4
    # From the middle on, the revert is of something outside, and its own revert cancels it.
    assert kinds(plan(story, policy, words, c, a)) == ["collapsed", "collapsed"]
    assert kinds(plan(story, policy, words, b, a)) == ["take"]


def test_a_present_change_is_not_collapsed(story, policy, words):
    """Downstream has it, so its revert must be taken there."""
    base = story.commit("base", {"f": "".join(TEXT)})
    with_it = {"f": "".join(edit(TEXT, 5, "five times as bright\n"))}
    a = story.commit("Five (#1)", with_it, base)
    b = story.commit('Revert "Five (#1)" (#2)', {"f": "".join(TEXT)}, a)
    downstream = story.commit("sync", with_it, base, body=f"Upstream-Commit: {a}")
    made = build_plan(story.repo, policy, words, base=base, through=b, downstream=downstream)
    assert kinds(made) == ["present", "take"]


# ---------------------------------------------------------------- the property that makes collapsing safe


def merge(base: bytes, ours: bytes, theirs: bytes, folder, *options: str) -> bytes | None:
    """git's own three-way merge; None on a conflict. It isn't asked where one side changed nothing: starting it is what takes time here."""
    if base in (ours, theirs):
        return theirs if base == ours else ours
    for name, data in (("ours", ours), ("base", base), ("theirs", theirs)):
        (folder / name).write_bytes(data)
    done = subprocess.run(
        ["git", "merge-file", "-p", *options, "ours", "base", "theirs"], cwd=folder, capture_output=True
    )
    return done.stdout if done.returncode == 0 else None


def draw_edit(data, text: bytes, number: int) -> bytes:
    lines = text.splitlines(keepends=True)
    at = data.draw(st.integers(0, len(lines)))
    width = data.draw(st.integers(0, min(2, len(lines) - at)))
    lines[at : at + width] = [b"change %d.%d\n" % (number, k) for k in range(data.draw(st.integers(0, 2)))]
    return b"".join(lines)


def draw_revert(data, states, target: int, name: str, number: int, folder) -> bytes:
    """As people revert: by git where it merges, else by removing what was added, by keeping both sides, or while doing something else too."""
    done, undone, now = states[target][name], states[target - 1][name], states[-1][name]
    result = merge(done, now, undone, folder)
    if result is None:
        added = set(done.splitlines()) - set(undone.splitlines())
        by_hand = b"".join(line for line in now.splitlines(keepends=True) if line.rstrip() not in added)
        union = merge(done, now, undone, folder, "--union")
        assert union is not None
        result = by_hand if data.draw(st.booleans()) else union
    return draw_edit(data, result, number) if data.draw(st.integers(0, 9)) == 0 else result


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_applying_the_plan_equals_applying_everything(story, policy, words, tmp_path, data):
    """Random histories with reverts, also of reverts, of old changes and inexact ones: the plan's changes alone, merged in order, give upstream's tip
    without a conflict."""
    size = data.draw(st.sampled_from((2, 6)))
    state = {name: "".join(f"{name}{n}\n" for n in range(size)).encode() for name in "fg"}
    base = tip = story.commit("base", dict(state))
    states = [state]
    titles = ["base"]
    for number in range(1, data.draw(st.integers(3, 7))):
        after = dict(states[-1])
        if number > 1 and data.draw(st.booleans()):
            target = data.draw(st.integers(1, number - 1))
            after = {name: draw_revert(data, states, target, name, number, tmp_path) for name in "fg"}
            again = titles[target].startswith('Revert "')
            titles.append(
                f"Reapply {titles[target].removeprefix('Revert ')}" if again else f'Revert "{titles[target]}"'
            )
        else:
            name = data.draw(st.sampled_from("fg"))
            after[name] = draw_edit(data, after[name], number)
            titles.append(f"Change {number}")
        states.append(after)
        tip = story.commit(titles[-1], dict(after), tip)
    made = plan(story, policy, words, tip, base)
    ours = dict(states[0])
    for place, item in enumerate(made.items, 1):
        if item.decision.kind is Kind.COLLAPSED:
            continue
        for name in "fg":
            merged = merge(states[place - 1][name], ours[name], states[place][name], tmp_path)
            assert merged is not None, (titles, kinds(made), place)
            ours[name] = merged
    assert ours == states[-1], (titles, kinds(made))
