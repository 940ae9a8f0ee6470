"""The audit finds every way in which a record can contradict another, and nothing where there is nothing."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.vime.durable.conftest import answer
from tests.vime.durable.test_store import Open, complete, step
from vime.cli.app import cli
from vime.durable.audit import Audit, Line, audit, judge
from vime.durable.history import Entry, History
from vime.observe.ledger import Ledger

SIZE = 2


def known(
    batches: dict[int, tuple[int, ...]],
    drawn: int,
    trained: int,
    dropped: tuple[int, ...] = (),
    waiting: tuple[int, ...] = (),
) -> History:
    """A history of `drawn` groups of two samples."""
    history = History(batches=batches)
    for number in range(drawn):
        state = "dropped" if number in dropped else "pending" if number in waiting else "ready"
        fate: dict[str, Any] = {"reason": "filter:x", "step": 0} if state == "dropped" else {}
        history.tasks[number] = Entry(
            number, state, None, {"samples": SIZE, "origin": [0, number, SIZE * number]}, **fate
        )
    history.notes = {
        "data": {"sample_group_index": drawn, "fingerprint": "f"},
        "progress": {"trained": trained, "committed": trained - 1},
    }
    return history


def account(batches: dict[int, tuple[int, ...]]) -> list[dict[str, Any]]:
    return [
        {"rollout_id": number, "samples": [[SIZE * g + i, g] for g in groups for i in range(SIZE)]}
        for number, groups in batches.items()
    ]


BATCHES = {0: (0, 1), 1: (3, 2)}


def judged(history: History, ledger: list[dict[str, Any]] | None = None) -> Audit:
    return judge([Line("b0000", history)], account(BATCHES) if ledger is None else ledger)


def test_a_clean_run() -> None:
    report = judged(known(BATCHES, 8, 1, dropped=(4,), waiting=(5, 6)))
    assert report.findings == ()
    assert [report.count(kind) for kind in ("trained", "dropped", "waiting", "ready")] == [
        (4, 8),
        (1, 2),
        (2, 4),
        (1, 2),
    ]
    assert (
        "  trained   4 prompts, 8 samples in 2 steps, of which the newest complete checkpoint holds 1"
        in report.render()
    )


Spoil = Callable[[History, list[dict[str, Any]]], None]
WRONGS: list[tuple[str, Spoil]] = [
    ("group 1 is in the batches of steps 0 and 1", lambda h, led: h.batches.update({1: (1, 3, 2)})),
    (
        "group 2 is in the batch of step 1 but is pending",
        lambda h, led: h.tasks.update({2: dataclasses.replace(h.tasks[2], state="pending")}),
    ),
    ("prompts that were drawn and have no record: groups 6", lambda h, led: h.tasks.pop(6) and None),
    ("steps without a batch: 0", lambda h, led: h.batches.pop(0) and None),
    ("steps that the trainer has no account of: 1", lambda h, led: led.pop() and None),
    ("samples trained more than once: 0", lambda h, led: led[1]["samples"].append([0, 3])),
    ("step 1 trained groups that are not in its batch: 7", lambda h, led: led[1]["samples"].append([14, 7])),
]


@pytest.mark.parametrize(("finding", "spoil"), WRONGS)
def test_what_is_wrong_is_found(finding: str, spoil: Spoil) -> None:
    history, ledger = known(dict(BATCHES), 8, 1), account(BATCHES)
    spoil(history, ledger)
    assert finding in judged(history, ledger).findings


def test_samples_that_filled_no_step_are_told() -> None:
    ledger = account(BATCHES)
    ledger[1]["samples"].pop()
    report = judged(known(BATCHES, 4, 1), ledger)
    assert report.clean
    assert (report.trained_samples, report.left_over) == (7, 1)


def test_a_step_that_died_before_it_was_on_record_is_a_note() -> None:
    report = judged(known({0: (0, 1), 1: (2, 3)}, 4, 0))
    assert report.clean
    assert report.notes == ("step 1 was trained by a process that died before it was on record; it is trained again",)
    assert report.fates[2].kind == "planned"


def test_a_branch_takes_over_what_its_parent_left_open() -> None:
    parent = known({0: (0, 1), 1: (2, 3), 2: (4, 5)}, 8, 2, dropped=(7,))
    parent.tasks[7] = dataclasses.replace(parent.tasks[7], step=2)
    child = known({1: (2, 3)}, 4, 1)
    child.tasks = {2: child.tasks[2], 3: child.tasks[3]}
    report = judge([Line("b0000", parent, until=0), Line("b0001", child)], account({0: (0, 1), 1: (2, 3)}))
    assert report.findings == ()
    assert [group for group, fate in report.fates.items() if fate.kind == "waiting"] == [4, 5, 6, 7]


def test_a_real_queue_across_crashes_and_branches(open_durable: Open) -> None:
    store = open_durable()
    root = Path(store.args.save)
    ledger = Ledger(root, 0)

    def whole(number: int, save: bool) -> None:
        groups = step(store, number)
        ledger.trained(number, "v", {2 * g + i: g for g in groups for i in range(2)})
        if save:
            complete(store, number)
        store.sync()

    whole(0, save=True)
    whole(1, save=True)
    claimed = store.claim(2)
    store.drop(claimed[0].task_id, 2, "failed:timeout")
    store.release(claimed[1].task_id, answer(claimed[1], 1, unfinished=True).group, "closed")
    store.sync()
    report = audit(root, deep=True)
    assert report.findings == ()
    assert report.to_dict()["dropped"] == {"failed:timeout": 1}
    store = open_durable(0)  # a branch
    ledger = Ledger(root, 1)
    report = audit(root)
    assert report.findings == ()
    assert report.count("trained") == (4, 8)
    assert report.count("waiting") == (6, 12)
    whole(1, save=False)
    report = audit(root, deep=True)
    assert report.findings == ()
    assert (report.trained_steps, report.committed) == (2, 0)


def test_damage_is_found_on_disk(open_durable: Open) -> None:
    store = open_durable()
    root = Path(store.args.save)
    step(store, 0)
    Ledger(root, 0).trained(0, "v", {2 * g + i: g for g in range(4) for i in range(2)})
    store.close()
    assert audit(root, deep=True).clean
    for pack in (root / "rollout_data").glob("raw/*/*/*.pack"):
        data = bytearray(pack.read_bytes())
        data[len(data) // 2] ^= 1
        pack.write_bytes(data)
    assert any("cannot be read" in finding for finding in audit(root, deep=True).findings)


def test_without_a_queue(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, 0)
    ledger.trained(0, "v", {0: 0, 1: 0})
    ledger.trained(1, "v", {2: 1, 3: 1})
    assert audit(tmp_path).clean
    ledger.trained(3, "v", {3: 1})
    report = audit(tmp_path)
    assert report.findings == (
        "group 1 was trained in steps 1 and 3",
        "samples trained more than once: 3",
        "steps without an account: 2",
    )


def test_the_verb(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    ledger = Ledger(tmp_path / "run", 0)
    ledger.trained(0, "v", {0: 0, 1: 0})
    run = CliRunner().invoke
    told = run(cli, ["audit", str(tmp_path / "run"), "--json"])
    assert told.exit_code == 0
    assert json.loads(told.output)["data"]["counts"]["trained"] == {"prompts": 1, "samples": 2}
    ledger.trained(1, "v", {0: 0})
    told = run(cli, ["audit", str(tmp_path / "run")])
    assert told.exit_code == 1
    assert "audit: 2 findings" in told.output
