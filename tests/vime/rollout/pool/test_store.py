"""The store in memory: ids make every call repeatable, and a checkpoint keeps what is finished and not yet trained."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.vime.rollout.pool import virtual
from vime.rollout.pool.store import Counts, MemoryStore, Task
from vime.sample import Sample, Status


@pytest.fixture
def open_store(make_args: Callable[..., Namespace], tmp_path: Path) -> Callable[[], MemoryStore]:
    args = make_args("--save", str(tmp_path / "kept"), "--load", str(tmp_path / "kept"))
    return lambda: virtual.store_of(args, 40)


def answered(task: Task) -> list[Sample]:
    for sample in task.group:
        sample.append_response_tokens(None, [7, 8], [-0.5, -0.25])
        sample.status, sample.reward = Status.COMPLETED, 1.0
    return task.group


def ledger(store: MemoryStore) -> Any:
    return store.source.ledger()  # type: ignore[attr-defined]


def test_every_call_may_be_made_again(open_store: Callable[[], MemoryStore]) -> None:
    store = open_store()
    one, two, three = store.claim(3)
    for _ in range(2):
        store.accept(one.task_id, answered(one))
        store.release(two.task_id, two.group, "interrupted")
        store.drop(three.task_id, 0, "filter:odd")
        store.accept(three.task_id, three.group)
    assert store.counts() == Counts(leased=0, ready=1, planned=0)
    batch = store.plan(0, [one.task_id])
    assert store.plan(0, [two.task_id]) is batch is store.planned(0)
    assert store.counts() == Counts(0, 0, 1)
    store.trained(0)
    store.trained(0)
    assert store.counts() == Counts(0, 0, 0)
    assert ledger(store).fates == {"trained": 1, "filter:odd": 1}
    assert store.claim(1)[0].task_id == two.task_id  # released ones come first


def test_a_checkpoint_keeps_what_is_finished_and_not_yet_trained(open_store: Callable[[], MemoryStore]) -> None:
    store = open_store()
    tasks = store.claim(4)
    for task in tasks[:3]:
        store.accept(task.task_id, answered(task))
    store.plan(0, [tasks[0].task_id])
    store.trained(0)
    store.plan(1, [tasks[1].task_id])  # planned, but the checkpoint is of step 0
    store.save(0)

    again = open_store()
    again.load(0)
    found = {task.task_id: task for task in again.claim(4)}
    assert sorted(found) == [1, 2, 3, 4]  # what was trained is gone, one prompt is new
    assert [found[i].finished for i in (1, 2, 3, 4)] == [True, True, False, False]
    assert found[2].group[0].tokens == tasks[2].group[0].tokens
    assert found[2].group[0].rollout_log_probs == [-0.5, -0.25]
    assert not found[3].group[0].response_length


def test_a_start_loads_nothing(open_store: Callable[[], MemoryStore]) -> None:
    store = open_store()
    store.load(-1)
    assert [task.task_id for task in store.claim(2)] == [0, 1]


def test_a_source_without_indices_gets_names_of_ours(make_args: Callable[..., Namespace]) -> None:
    class Plain:
        def get_samples(self, num_samples: int) -> list[list[Sample]]:
            return [[Sample(prompt="p")] for _ in range(num_samples)]

        def add_samples(self, groups: list[list[Sample]]) -> None: ...

        def save(self, rollout_id: int) -> None: ...

        def load(self, rollout_id: int | None) -> None: ...

        def __len__(self) -> int:
            return 1

    store = MemoryStore(make_args(), Plain())
    assert [task.task_id for task in store.claim(2)] == [-1, -2]
