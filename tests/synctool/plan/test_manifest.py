"""The manifest: exact round trips, hand edits kept, mistakes named by line."""

from __future__ import annotations

import re
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synctool.errors import ConfigError
from synctool.git.commits import Commit, Person
from synctool.plan.manifest import parse_manifest
from synctool.plan.manifest_write import new_manifest, record_mirrored, updated_manifest
from synctool.plan.model import (
    Change,
    Confidence,
    Decision,
    Dependency,
    Evidence,
    Identity,
    Kind,
    Plan,
    PlannedChange,
    Strength,
)

ADA = Person("Ada", "ada@example.org", 0)
TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.just("\udcff"), max_size=12)
REASON = TEXT.filter(lambda text: bool(text.strip()))


def change(n: int, subject: str, number: int | None = None) -> Change:
    identity = Identity(number, Confidence.HIGH, "squash") if number else None
    return Change(
        Commit(f"{n:040x}", "t" * 40, ("p" * 40,), ADA, ADA, subject.replace("\n", " ") or "x"), "p" * 40, identity
    )


@st.composite
def plans(draw):
    items = []
    for n in range(1, draw(st.integers(1, 6)) + 1):
        kind = draw(st.sampled_from(list(Kind)))
        evidence = tuple(Evidence("hunks", Strength.PARTIAL, draw(TEXT)) for _ in range(draw(st.integers(0, 2))))
        decision = Decision(kind, draw(REASON), draw(TEXT), evidence)
        needs = tuple(Dependency("d" * 40, "#9", (draw(TEXT),)) for _ in range(draw(st.integers(0, 1))))
        items.append(PlannedChange(change(n, draw(TEXT), draw(st.none() | st.integers(1, 999))), decision, needs))
    return Plan("b" * 40, f"{len(items):040x}", "c" * 40, tuple(items), "--from")


@settings(max_examples=150, deadline=None)
@given(plans())
def test_new_manifests_parse_and_updating_them_changes_nothing(plan):
    text = new_manifest(plan, "lantern")
    manifest = parse_manifest(text, "m.toml")
    assert [(e.commit, e.decision) for e in manifest.entries] == [(i.change.oid, i.decision.kind) for i in plan]
    assert not any(entry.by_hand for entry in manifest.entries)
    assert updated_manifest(text, plan) == text


COMMENTS = ("# why this one\n", "\n\n# ----\n", "  # indented\n", "")


@settings(max_examples=150, deadline=None)
@given(plans(), plans(), st.data())
def test_an_update_keeps_every_foreign_line(before, after, data):
    """Comments, notes and evidence that people wrote survive, in order, whatever the plan finds later."""
    lines = []
    # Lines as TOML counts them: splitlines would also split a subject at U+0085.
    for n, line in enumerate(re.split(r"(?<=\n)", new_manifest(before, "lantern"))):
        if line == "[[change]]\n":
            lines.append(data.draw(st.sampled_from(COMMENTS)))
        lines.append(line)
        if line.startswith("commit = "):
            lines.append(f'note = "mine {n}"  # kept\n')
    lines.append('\n# at the end\n[[evidence]]\nname = "run 12"  # by hand\noutcome = "passed"\n')
    text = "".join(lines)
    updated = updated_manifest(text, after)
    again = updated_manifest(updated, after)
    assert again == updated, "a second update finds nothing to do"
    ours = [
        line
        for line in text.split("\n")  # TOML lines: U+0085 in a reason ends none
        if "#" in line and not line.startswith(("subject", "reason", "owner", "evidence", "depends_on", " "))
    ]
    left = iter(updated.split("\n"))
    assert all(line in left for line in ours), "comments in order"
    parsed, was = tomllib.loads(updated), tomllib.loads(text)
    assert parsed["evidence"] == was["evidence"]
    notes = {entry["commit"]: entry["note"] for entry in was["change"]}
    assert {e["commit"]: e["note"] for e in parsed["change"] if "note" in e} == notes
    expected = {i.change.oid: i.decision.kind for i in after}
    for entry in parse_manifest(updated, "m").entries:
        if entry.commit in expected:
            assert entry.decision == expected[entry.commit]


def test_hand_edits_hold_against_a_later_plan():
    take = PlannedChange(change(1, "One", 1), Decision(Kind.TAKE))
    other = PlannedChange(change(2, "Two", 2), Decision(Kind.TAKE))
    text = new_manifest(Plan(None, "2" * 40, None, (take, other)))
    edited = text.replace(
        'decision = "take"', 'decision = "exclude" # not for us\nreason = "needs the other engine"\nowner = "ada"', 1
    )
    manifest = parse_manifest(edited, "m.toml")
    first, second = manifest.entries
    assert (first.by_hand, first.decision, first.reason, first.owner) == (
        True,
        "exclude",
        "needs the other engine",
        "ada",
    )
    assert not second.by_hand
    present = Decision(Kind.PRESENT, "seen", evidence=(Evidence("hunks", Strength.STRONG, "seen"),))
    later = Plan(None, "2" * 40, None, (take.decided(manifest.entries[0].as_decision()), other.decided(present)))
    updated = updated_manifest(edited, later)
    assert '"exclude" # not for us' in updated
    first, second = parse_manifest(updated, "m.toml").entries
    assert first.decision == "exclude"
    assert (second.decision, second.planned, second.reason) == ("present", "present", "seen")


def test_pinned():
    text = new_manifest(Plan(None, "1" * 40, None, (PlannedChange(change(1, "One"), Decision(Kind.TAKE)),)))
    (entry,) = parse_manifest(text + "pinned = true\n", "m").entries
    assert entry.by_hand


def test_mirrored_is_filled_in():
    text = new_manifest(Plan(None, "1" * 40, None, (PlannedChange(change(1, "One"), Decision(Kind.TAKE)),))) + "# end\n"
    done = record_mirrored(text, {f"{1:040x}": "e" * 40})
    assert parse_manifest(done, "m").entries[0].mirrored == "e" * 40
    assert done.endswith("# end\n")
    assert record_mirrored(done, {f"{1:040x}": "e" * 40}) == done


HEAD = 'schema = 1\nthrough = "abcdef1"\n'
ONE = '[[change]]\ncommit = "abcdef1"\n'


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ('schema = 1\nthrough = "x"\nthruogh = 1\n', 3, "unknown key 'thruogh'"),
        (HEAD + ONE + 'decison = "take"\n', 5, "unknown key 'decison'"),
        (HEAD + ONE + 'decision = "skip"\n', 3, "can't be 'skip'"),
        (HEAD + ONE, 3, "needs 'decision'"),
        (HEAD + ONE + 'decision = "exclude"\n', 3, "without a reason"),
        (HEAD + ONE + 'decision = "exclude"\nreason = "no"\n', 3, "without an owner"),
        (HEAD + ONE + 'decision = "collapsed"\nreason = "no"\n', 3, "only vime-sync collapses"),
        (HEAD + ONE + 'decision = "take"\npr = "12"\n', 6, "'pr' must be a whole number"),
        (HEAD + ONE + 'decision = "take"\npr = true\n', 6, "'pr' must be a whole number"),
        (HEAD + ONE + 'decision = "take"\nevidence = [1]\n', 6, "must be a list of texts"),
        (HEAD + ONE + 'decision = "take"\n' + ONE + 'decision = "take"\n', 6, "listed twice"),
        (HEAD + '[[change]]\ncommit = "HEAD"\ndecision = "take"\n', 3, "not a commit id"),
        (HEAD + '[[port]]\ndownstream = "abcdef1"\n', 3, "either 'commit' or 'pr'"),
        (HEAD + "change = 1\n", 3, "must be an array of tables"),
        ("schema = 2\nthrough = 'x'\n", 1, "schema 2 is not known"),
        ("schema = 1\n\nthrough = \n", 3, "not valid TOML"),
    ],
)
def test_mistakes_are_named_by_line(text, line, says):
    with pytest.raises(ConfigError, match=says) as caught:
        parse_manifest(text, "sync.toml")
    assert caught.value.where == f"sync.toml:{line}"


def test_a_near_key_is_proposed():
    with pytest.raises(ConfigError) as caught:
        parse_manifest(HEAD + ONE + 'decison = "take"\n', "m")
    assert caught.value.hint == "did you mean 'decision'?"
