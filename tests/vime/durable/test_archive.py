"""Rollouts go out and come back the same, whichever file they were in; what is no rollout is refused, and nothing in it runs."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.vime.durable.conftest import answer
from tests.vime.durable.test_store import Open, complete, labels, step
from vime.durable.archive import Replay, RolloutArchive
from vime.errors import DataError, UsageError
from vime.sample import Sample, Status


def samples(count: int = 4) -> list[Sample]:
    found = []
    for i in range(count):
        one = Sample(group_index=i // 2, index=i, prompt="p", tokens=[1, 2, 3], response="x", response_length=1)
        one.reward, one.status, one.rollout_log_probs = 0.5, Status.COMPLETED, [-0.1 * i]
        one.rollout_routed_experts = np.arange(2 * 2 * 2, dtype=np.uint16).reshape(2, 2, 2) + i
        found.append(one)
    return found


def same(one: list[Sample], other: list[Sample]) -> bool:
    for a, b in zip(one, other, strict=True):
        left, right = a.to_dict(), b.to_dict()
        routes = left.pop("rollout_routed_experts"), right.pop("rollout_routed_experts")
        if left != right or not np.array_equal(*routes) or type(routes[0]) is not type(routes[1]):
            return False
    return True


def test_a_file_of_its_own(tmp_path: Path) -> None:
    RolloutArchive.save(tmp_path / "deep" / "r_7.pt", 7, samples())
    archive = RolloutArchive(tmp_path / "deep" / "r_7.pt")
    assert (archive.rollout_id, len(archive)) == (7, 4)
    assert archive.keys() == [(0, 0), (0, 1), (1, 2), (1, 3)]
    assert same(archive.load_samples(), samples())
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["r_7.pt"]


def test_slimes_older_files(tmp_path: Path) -> None:
    """No format, arrays as they were pickled, `status` as text."""
    torch.save({"rollout_id": 3, "samples": [one.to_dict() for one in samples()]}, tmp_path / "3.pt")
    assert same(RolloutArchive(tmp_path / "3.pt").load_samples(), samples())


def test_a_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"rollout_id": 0, "samples": [Trap()]}, tmp_path / "0.pt")
    with pytest.raises(DataError, match="cannot be read without running code from it"):
        RolloutArchive(tmp_path / "0.pt")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [{"rollout_id": 0}, [1], {"samples": []}])
def test_other_files_are_refused(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "0.pt")
    with pytest.raises(DataError, match="is no rollout archive"):
        RolloutArchive(tmp_path / "0.pt")
    (tmp_path / "0.straw.json").write_text(json.dumps({"format": 1}))
    with pytest.raises(DataError, match="is no rollout archive"):
        RolloutArchive(tmp_path / "0.straw.json")


def test_samples_whose_lengths_disagree_are_refused(tmp_path: Path) -> None:
    states = [one.to_dict() for one in samples()]
    states[2]["rollout_log_probs"] = [0.1, 0.2]
    torch.save({"rollout_id": 0, "samples": states}, tmp_path / "0.pt")
    with pytest.raises(DataError, match="rollout_log_probs has 2 entries instead of 1"):
        RolloutArchive(tmp_path / "0.pt").load_samples()


def test_an_index_keeps_its_records_and_changes_nothing(open_durable: Open, tmp_path: Path) -> None:
    flags = ("--rollout-queue-online-gc", "--rollout-queue-segment-mib", "1")
    store = open_durable(-1, *flags)
    tasks = store.claim(4)
    for task in tasks:
        store.accept(task.task_id, answer(task).group)
    batch = store.plan(0, [task.task_id for task in tasks])
    index = tmp_path / "out" / "r_0.straw.json"
    store.archive(index, 0, batch.groups)
    store.trained(0)
    complete(store, 0)  # frees what the batch itself held
    step(store, 1)
    store.close()
    before = {path: path.read_bytes() for path in store.pool.folder.rglob("*") if path.is_file()}
    archive = RolloutArchive(index)
    expected = [sample for group in batch.groups for sample in group]
    assert archive.load_samples() == expected
    assert Replay(str(tmp_path / "out" / "r_{rollout_id}.straw.json"), 1).samples(0) == expected
    archive.export_pt(tmp_path / "r_0.pt")
    assert RolloutArchive(tmp_path / "r_0.pt").load_samples() == expected
    assert {path: path.read_bytes() for path in store.pool.folder.rglob("*") if path.is_file()} == before
    archive.release()
    assert not index.exists()
    assert labels(open_durable(0, *flags).planned(1).tasks) == ["4", "5", "6", "7"]  # type: ignore[union-attr]


def test_an_index_of_another_queue_is_refused(open_durable: Open, tmp_path: Path) -> None:
    store = open_durable()
    batch = [answer(task).group for task in store.claim(2)]
    store.archive(tmp_path / "0.straw.json", 0, batch)
    record = json.loads((tmp_path / "0.straw.json").read_text())
    (tmp_path / "1.straw.json").write_text(json.dumps(record | {"rollout_id": 1, "pool": "other"}))
    with pytest.raises(DataError, match="gone or another"):
        RolloutArchive(tmp_path / "1.straw.json").load_samples()
    (tmp_path / "1.straw.json").write_text(json.dumps(record))
    replay = Replay(str(tmp_path / "{rollout_id}.straw.json"), 2)
    with pytest.raises(DataError, match="is the archive of rollout 0, not 1"):
        replay.samples(1)
    (tmp_path / "1.straw.json").write_text(json.dumps(record | {"rollout_id": 1, "samples": 99}))
    with pytest.raises(DataError, match="holds 4 samples, says 99"):
        replay.samples(1)


def test_a_replay_needs_every_step_and_keeps_whole_groups(tmp_path: Path) -> None:
    template = str(tmp_path / "r_{rollout_id}.pt")
    RolloutArchive.save(template.format(rollout_id=0), 0, samples(8))
    with pytest.raises(DataError, match="no archive for 2 of 3 steps, first 1"):
        Replay(template, 3)
    assert [one.index for one in Replay(template, 1, subsample=0.5).samples(0)] == [0, 1, 2, 3]
    assert len(Replay(template, 1, subsample=0.01).samples(0)) == 2


def test_an_index_needs_a_queue(make_args: Callable[..., Namespace], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="1 problem") as caught:
        make_args("--save-debug-rollout-data", str(tmp_path / "{rollout_id}.straw.json"))
    assert "needs --rollout-data-transport straw" in caught.value.render()
