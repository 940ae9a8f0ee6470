"""The durable store against what memory alone would have done, across restarts."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.vime.durable.conftest import answer
from vime.durable import history
from vime.durable.queue import control_folder
from vime.durable.store import DurableStore
from vime.errors import DataError, MachineError, UsageError


def read_history(store: DurableStore) -> history.History:
    return history.read(control_folder(store.pool, store.pool.current or ""))


Open = Callable[..., DurableStore]


def labels(tasks: Any) -> list[str]:
    return [task.group[0].label for task in tasks]


def step(store: DurableStore, number: int, save: bool = False) -> list[int]:
    """One whole step: claim, answer, plan, train."""
    tasks = store.claim(4)
    for task in tasks:
        store.accept(task.task_id, answer(task, number).group)
    batch = store.plan(number, [task.task_id for task in tasks])
    store.trained(number)
    store.sync()
    if save:
        complete(store, number)
    return [task.task_id for task in batch.tasks]


def complete(store: DurableStore, number: int) -> None:
    """A checkpoint, with a manifest in the trainer's place."""
    store.save(number)
    manifest = Path(store.args.save) / f"iter_{number:07d}" / "manifest.json"
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text("{}")
    store.committed(number)


def test_steps_go_on_where_they_were(open_durable: Open) -> None:
    store = open_durable()
    assert step(store, 0, save=True) == [0, 1, 2, 3]
    assert step(store, 1) == [4, 5, 6, 7]
    store = open_durable(0)
    batch = store.planned(1)  # its weights are gone, its samples are not
    assert batch is not None
    assert labels(batch.tasks) == ["4", "5", "6", "7"]
    assert batch.tasks[1].group == answer(open_fresh(store, 5), 1).group
    store.trained(1)
    assert store.planned(2) is None
    assert step(store, 2) == [8, 9, 10, 11]
    assert store.source.ledger().line() == "12 prompts, 12 trained once each with 24 samples"  # type: ignore[attr-defined]


def open_fresh(store: DurableStore, number: int) -> Any:
    """The prompt `number` as it was dealt."""
    from vime.rollout.pool.store import Task

    prompt = store.source.prompts[number]  # type: ignore[attr-defined]
    return Task(number, [prompt.sample(number, 2 * number + i) for i in range(2)])


def test_claimed_partial_ready_and_dropped_survive(open_durable: Open) -> None:
    store = open_durable()
    claimed = store.claim(5)
    store.release(1, answer(claimed[1], 0, unfinished=True).group, "interrupted")
    store.release(2, claimed[2].group, "closed")
    store.accept(3, answer(claimed[3], 0).group)
    store.drop(4, 0, "filter:zero_std_1")
    store = open_durable()
    assert labels(store.ready()) == ["3"]
    assert store.ready()[0].finished
    again = store.claim(4)
    assert [task.task_id for task in again] == [1, 0, 2, 5]  # the begun one first, then in order, then a new one
    assert again[0].group[0].response_length == 2
    assert again[0].group[0].version_spans[0].version == "0"
    ledger = store.source.ledger()  # type: ignore[attr-defined]
    assert (ledger.issued, ledger.outstanding, ledger.fates) == (6, 5, {"filter:zero_std_1": 1})


def test_every_method_may_be_repeated(open_durable: Open) -> None:
    store = open_durable()
    tasks = store.claim(4)
    for task in tasks:
        answer(task)
        store.accept(task.task_id, task.group)
        store.accept(task.task_id, task.group)
        store.drop(task.task_id, 0, "late")
        store.release(task.task_id, task.group, "late")
    first = store.plan(0, [0, 1])
    assert store.plan(0, [2, 3]) is first
    store.trained(0)
    store.trained(0)
    store = open_durable()
    assert labels(store.ready()) == ["2", "3"]


def test_an_older_checkpoint_begins_a_branch(open_durable: Open) -> None:
    store = open_durable()
    for number in range(3):
        step(store, number, save=True)
    store = open_durable(0)
    assert store.pool.current == "b0001"
    assert store.pool.facts("b0001")["reason"] == "back from step 2 to step 0"
    assert step(store, 1, save=True) == [4, 5, 6, 7]  # the prompts are dealt again, nothing is taken over
    store = open_durable(1)
    assert store.pool.current == "b0001"
    assert step(store, 2) == [8, 9, 10, 11]


def test_changed_options_do_not_replay(open_durable: Open) -> None:
    store = open_durable()
    step(store, 0)
    store = open_durable(-1, "--lr", "1e-3")
    assert store.planned(0) is None
    assert "options have changed" in store.pool.facts("b0001")["reason"]
    store = open_durable(-1, "--lr", "1e-3", "--num-rollout", "9")
    assert store.pool.current == "b0001"


def test_a_checkpoint_without_a_queue_gives_its_prompts(
    open_durable: Open, make_args: Callable[..., Namespace], tmp_path: Path
) -> None:
    from vime.data.source import RolloutDataSourceWithBuffer
    from vime.rollout.pool.store import MemoryStore

    args = make_args("--save", str(tmp_path / "run"))
    memory = MemoryStore(args, RolloutDataSourceWithBuffer(args))
    for task in memory.claim(5):
        memory.accept(task.task_id, answer(task).group)
    memory.plan(0, [0, 1, 2, 3])
    memory.trained(0)
    memory.save(0)
    store = open_durable(0)
    (finished,) = store.claim(1)
    assert finished.finished
    assert finished.task_id == 4
    assert step(store, 1) == [5, 6, 7, 8]


def test_other_prompts_or_another_order_are_refused(open_durable: Open, prompt_file: Path) -> None:
    store = open_durable()
    step(store, 0, save=True)
    store.claim(2)
    with pytest.raises(DataError, match="order of the prompts has changed"):
        open_durable(0, "--rollout-shuffle")
    text = prompt_file.read_text()
    prompt_file.write_text(text.replace("p07", "q07"))
    with pytest.raises(DataError, match="the prompts have changed"):
        open_durable(0)
    store = open_durable(0, "--accept-new-data")
    assert store.claim(1)[0].group[0].label == "0"
    store = open_durable(0, "--accept-new-data")
    fates = [entry.reason for entry in read_history(store).tasks.values() if entry.state == "dropped"]
    assert fates == ["data changed", "data changed"]


def test_groups_of_another_size_are_refused(open_durable: Open) -> None:
    open_durable().claim(2)
    with pytest.raises(DataError, match="unfinished groups have 2 answers, --n-samples-per-prompt is 3"):
        open_durable(-1, "--n-samples-per-prompt", "3")


@pytest.mark.parametrize("damage", ["lost", "truncated", "manifest"])
def test_a_damaged_data_half_is_never_taken_for_an_empty_one(open_durable: Open, damage: str) -> None:
    store = open_durable()
    step(store, 0, save=True)
    store.close()
    root = Path(store.args.save)
    state = root / "rollout" / "global_dataset_state_dict_0.pt"
    match damage:
        case "lost":
            state.unlink()
        case "truncated":
            state.write_bytes(state.read_bytes()[:-1])
        case "manifest":
            (root / "iter_0000000" / "manifest.json").write_text("{} ")
    with pytest.raises(DataError, match=r"not the one that was saved|is not what the joint checkpoint"):
        open_durable(0)


def test_the_folder_has_one_owner(open_durable: Open, straw_args: Callable[..., Namespace]) -> None:
    from vime.data.source import RolloutDataSourceWithBuffer

    open_durable()
    args = straw_args()
    with pytest.raises(MachineError, match=r"in use by process \d+"):
        DurableStore(args, RolloutDataSourceWithBuffer(args))


def test_flags_that_cannot_change(open_durable: Open) -> None:
    open_durable()
    with pytest.raises(UsageError, match="--rollout-queue-run-id is other, the queue was made with rollout"):
        open_durable(-1, "--rollout-queue-run-id", "other")
    with pytest.raises(UsageError, match="--rollout-queue-online-gc must be given from the first start"):
        open_durable(-1, "--rollout-queue-online-gc")
    open_durable(-1, "--rollout-queue-lease-seconds", "10")


def test_garbage_is_freed_behind_complete_checkpoints_only(open_durable: Open) -> None:
    flags = ("--rollout-queue-online-gc", "--rollout-queue-segment-mib", "1")
    store = open_durable(-1, *flags)
    packs = lambda: len(list(store.pool.folder.glob("raw/*/*/*.pack")))  # noqa: E731
    step(store, 0)
    step(store, 1)
    before = packs()
    complete(store, 1)
    store.writer.barrier()
    assert packs() < before
    store = open_durable(1, *flags)
    assert step(store, 2) == [8, 9, 10, 11]
    store = open_durable(1, *flags)
    batch = store.planned(2)
    assert batch is not None
    assert labels(batch.tasks) == ["8", "9", "10", "11"]


def test_a_step_costs_the_same_however_long_the_run_is(open_durable: Open) -> None:
    """Straw tells some attributes by way of its whole state, as JSON: once in each request's name made steps slower and slower."""
    store = open_durable()
    step(store, 0)
    queue: Any = store.queue
    asked: list[str] = []
    real = queue._coordinator._call

    def note(method: str, values: Any) -> Any:
        asked.append(method)
        return real(method, values)

    queue._coordinator._call = note
    step(store, 1, save=True)
    store.sync()
    assert "complete_task" in asked
    assert "state" not in asked


def test_a_queue_that_collects_goes_on_after_the_packs_of_its_first_prompts_are_gone(
    open_durable: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vime.durable.pool._PACK_BYTES", 64 << 10)
    store = open_durable(-1, "--rollout-queue-online-gc")

    def packs() -> set[Path]:
        return set(store.pool.folder.rglob("*.pack"))

    step(store, 0, save=True)
    first, number = packs(), 0
    while first & packs():
        assert number < 60, "the packs were never full"
        number += 1
        step(store, number, save=number % 3 == 0)
    # what was kept for the process's whole life went with them
    for later in range(number + 1, number + 7):
        step(store, later, save=later % 3 == 0)
    store = open_durable(number + 6 - (number + 6) % 3)
    step(store, number + 7, save=True)
    prompts = 4 * (number + 8)
    assert store.source.ledger().line().startswith(f"{prompts} prompts, ")  # type: ignore[attr-defined]


def test_prompts_with_and_without_tensors_of_one_claim_come_back(
    open_durable: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those without share records of limited size; what holds a tensor has its own."""
    monkeypatch.setattr("vime.durable.queue._SHARED_BYTES", 1000)
    store = open_durable()
    dealt = store.source.get_samples

    def with_images(count: int) -> Any:
        groups = dealt(count)
        for group in groups[::3]:
            for sample in group:
                sample.multimodal_inputs = {"image": np.full((2, 3), sample.index, np.uint8)}
        return groups

    monkeypatch.setattr(store.source, "get_samples", with_images)
    tasks = store.claim(8)
    assert [task.group[0].multimodal_inputs is None for task in tasks] == [False, True, True] * 2 + [False, True]
    store.accept(1, answer(tasks[1]).group)
    store.sync()
    expected = {task.task_id: task.group for task in tasks}
    back = open_durable()
    again = back.ready() + back.claim(7)
    assert sorted(task.task_id for task in again) == list(range(8))
    for task in again:
        for one, other in zip(task.group, expected[task.task_id], strict=True):
            mine, theirs = one.to_dict(), other.to_dict()
            for state in (mine, theirs):
                state["multimodal_inputs"] = str(state["multimodal_inputs"])
            assert mine == theirs
