"""What a trainer gets instead of recorded tensors: where they lie, before a crash and after it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.vime.durable.conftest import answer
from vime.durable.reference import TensorAt
from vime.durable.store import DurableStore
from vime.errors import UsageError
from vime.sample import Sample


def step(store: DurableStore, number: int) -> list[Sample]:
    """Claim, answer with routes, and plan the batch of a step. Its samples."""
    for task in map(answer, store.claim(4)):
        for sample in task.group:
            rows = len(sample.tokens) - 1
            sample.rollout_routed_experts = np.full((rows, 2, 2), sample.index or 0, np.uint16)
            sample.rollout_top_p_token_ids, sample.rollout_top_p_offsets = list(range(2000)), [0, 500, 2000]
        store.accept(task.task_id, task.group)
    batch = store.plan(number, [task.task_id for task in store.ready()])
    return [sample for group in batch.groups for sample in group]


def check(sent: list[Sample], samples: list[Sample]) -> None:
    for one, sample in zip(sent, samples, strict=True):
        assert isinstance(one.rollout_routed_experts, TensorAt)
        found = one.rollout_routed_experts.load()
        assert found.dtype == np.uint16
        assert (found == sample.rollout_routed_experts).all()
        assert one.rollout_top_p_token_ids.load().tolist() == list(range(2000))
        assert one.tokens == sample.tokens
        assert one.rollout_top_p_offsets == [0, 500, 2000]  # too short to be worth a reference


def test_a_batch_refers_to_its_answers_in_the_queue_also_after_a_crash(
    open_durable: Callable[..., DurableStore],
) -> None:
    store = open_durable()
    samples = step(store, 0)
    sent = store.refer(0, samples)
    check(sent, samples)
    assert isinstance(samples[0].rollout_routed_experts, np.ndarray)  # the store keeps what it had

    again = open_durable()  # planned, not trained: the batch is handed out as it was
    batch = again.planned(0)
    assert batch is not None
    check(again.refer(0, [sample for group in batch.groups for sample in group]), samples)


def test_what_a_hook_put_in_its_place_travels(open_durable: Callable[..., DurableStore]) -> None:
    store = open_durable()
    samples = step(store, 0)
    samples[0].rollout_routed_experts = samples[0].rollout_routed_experts * 2
    sent = store.refer(0, samples)
    assert sent[0].rollout_routed_experts is samples[0].rollout_routed_experts
    assert isinstance(sent[1].rollout_routed_experts, TensorAt)
    assert store.refer(7, samples) == samples  # of a function that plans nothing here


def test_references_to_trained_answers_are_forgotten(open_durable: Callable[..., DurableStore]) -> None:
    store = open_durable()
    step(store, 0)
    store.trained(0)
    later = step(store, 1)
    store.sync()
    assert store.queue is not None
    assert sorted(store.queue.answers) == sorted({sample.group_index for sample in later})


def test_reading_from_a_queue_needs_one(make_args: Callable[..., object]) -> None:
    with pytest.raises(UsageError) as refused:
        make_args("--routing-replay-prefetch-microbatches", "2")
    assert "--rollout-data-transport straw" in refused.value.render()
