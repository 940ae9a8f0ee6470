"""Carry-over, narrowing, staleness and supersession, against what git says about the trees."""

from __future__ import annotations

import datetime
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synctool.evidence.record import Outcome, Record, Source, Statement, Topic
from synctool.evidence.standing import Standing, Target, assess
from synctool.policy.globs import matches
from synctool.policy.model import EvidenceKind, Neutral

HEAD, TREE = "a" * 40, "1" * 40
OTHER, OTHER_TREE = "b" * 40, "2" * 40
WHEN = datetime.datetime(2026, 11, 28, tzinfo=datetime.UTC)
TARGET = Target(HEAD, TREE, base="c" * 40)
NEUTRAL = (Neutral(paths=("/.ci/", "*.md"), reason="not in the runtime"),)


def record(minute: int = 0, **more: object) -> Record:
    values = {
        "head": HEAD, "tree": TREE, "name": "unit", "kind": "test", "outcome": "passed", "source": "run", "by": "A <a@b>",
        "when": WHEN + datetime.timedelta(minutes=minute), **more,
    }  # fmt: skip
    return Record.model_validate(values)


def look(*records: Record, paths: tuple[str, ...] | None = ("src/a.py",), statements: tuple[Statement, ...] = ()):
    return assess(
        records, statements, TARGET, lambda tree: paths, NEUTRAL, lambda a, d: a == "d" * 40 and d == TARGET.base
    )


@pytest.mark.parametrize(
    ("more", "paths", "standing"),
    [
        ({}, (), Standing.CURRENT),
        ({"head": OTHER}, (), Standing.CARRIED),
        ({"head": OTHER, "tree": OTHER_TREE}, (".ci/x.yml", "docs/a.md"), Standing.NARROWED),
        ({"head": OTHER, "tree": OTHER_TREE}, (".ci/x.yml", "src/a.py"), Standing.STALE),
        ({"head": OTHER, "tree": OTHER_TREE, "kind": "ci"}, (".ci/x.yml",), Standing.STALE),
        ({"head": OTHER, "tree": OTHER_TREE, "kind": "lint"}, ("docs/a.md",), Standing.STALE),
        ({"head": "d" * 40, "tree": OTHER_TREE}, ("src/a.py",), Standing.PARENT),
        ({"head": OTHER, "tree": OTHER_TREE}, None, Standing.UNKNOWN),
        ({"head": OTHER, "tree": None}, (), Standing.UNKNOWN),
        # a head that names another tree than the record does is no head of ours
        ({"tree": OTHER_TREE}, ("src/a.py",), Standing.STALE),
    ],
)
def test_standing(more, paths, standing):
    (row,) = look(record(**more), paths=paths).rows
    assert row.standing is standing
    assert row.green is standing.holds
    if standing is Standing.NARROWED:
        assert row.paths == paths
        assert row.rules == ("not in the runtime",)
    if standing is Standing.STALE:
        assert ".ci/x.yml" not in row.paths or row.record.kind is not EvidenceKind.TEST


@given(st.lists(st.sampled_from([".ci/a", "README.md", "src/a.py", "src/b.md", "x/.ci/y"]), unique=True))
def test_narrowed_only_when_every_path_is_neutral(paths):
    (row,) = look(record(head=OTHER, tree=OTHER_TREE), paths=tuple(paths)).rows
    free = all(any(matches(glob, path) for glob in NEUTRAL[0].paths) for path in paths)
    assert row.green == free
    assert not free or set(row.paths) == set(paths), "the proof lists every path"


def test_the_last_that_decided_speaks():
    rows = look(
        record(0), record(1, outcome="failed"), record(2, outcome="passed"), record(3, outcome="cancelled")
    ).rows
    assert [row.green for row in rows] == [False, False, True, False]
    assert {row.replaced_by for row in rows if row is not rows[2]} == {rows[2].record.id}
    rows = look(record(0), record(1, outcome="failed")).rows
    assert [row.green for row in rows] == [False, False], "a later failure takes the green away"
    assert rows[1].counts


def test_what_waits_neither_replaces_nor_is_lost():
    rows = look(record(0), record(1, outcome="pending")).rows
    assert [row.counts for row in rows] == [True, True]
    rows = look(record(0, outcome="pending"), record(1)).rows
    assert [row.counts for row in rows] == [False, True]


def test_another_tree_never_replaces():
    rows = look(record(0), record(5, head=OTHER, tree=OTHER_TREE, outcome="failed")).rows
    assert rows[0].green
    assert rows[1].replaced_by == rows[0].record.id


def test_withdrawn():
    made = record(0)
    said = Statement(
        topic=Topic.WITHDRAWS, target=made.id, text="wrong machine", by="A <a@b>", signed_off_by="A <a@b>", when=WHEN
    )
    ledger = look(made, statements=(said,))
    assert not ledger.green("unit")
    assert ledger.rows[0].replaced_by == said.id


def test_green_by_kind_and_platform():
    amd = record(0, kind="ci", name="ci", platform="linux/amd64")
    ledger = look(amd, record(1, kind="image", name="image"))
    assert ledger.green(kind=EvidenceKind.CI, platform="linux/amd64")[0].record == amd
    assert not ledger.green(kind=EvidenceKind.CI, platform="linux/arm64")


def test_a_sync_sees_its_own_and_what_holds():
    mine, theirs = (
        record(0, sync="mine", head=OTHER, tree=OTHER_TREE),
        record(1, sync="theirs", head=OTHER, tree=OTHER_TREE, name="x"),
    )
    shared = record(2, sync="theirs", name="y")
    seen = look(mine, theirs, shared).of_sync("mine")
    assert [row.record.name for row in seen.rows] == ["unit", "y"]


@given(st.permutations(list(itertools.product(Outcome, (TREE, OTHER_TREE)))))
def test_at_most_one_record_of_a_name_decides(order):
    records = [
        record(n, outcome=outcome, tree=tree, head=HEAD if tree == TREE else OTHER, note="why")
        for n, (outcome, tree) in enumerate(order)
    ]
    ledger = look(*records)
    deciding = [row for row in ledger.counting() if row.record.outcome.decides]
    assert len(deciding) == 1
    last = [r for r in records if r.tree == TREE and r.outcome.decides][-1]
    assert deciding[0].record == last
    assert Source.RUN in {row.record.source for row in deciding}
