"""Routes and supports that lie in a real queue: the same losses and weights as with samples that carry them, and few of them in memory."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from straw import SharedFilesystemStore
from test_routing import record
from tiny_models import add_supports, make_samples

from vime.durable import codec, reference
from vime.durable.packed import Packed
from vime.durable.pool import CODECS
from vime.errors import VimeError
from vime.sample import Sample, Stored
from vime.trainer import recorded
from vime.trainer.deferred import Later, link
from vime.trainer.trainer import Trainer

Stores = Callable[[Sequence[Sample]], list[Sample]]


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stores:
    """Publish samples as one group and give what travels instead of them."""
    monkeypatch.setattr(codec, "_LONG", 0)  # lists of these tests are short

    def publish(samples: Sequence[Sample]) -> list[Sample]:
        store = SharedFilesystemStore(tmp_path / "queue", "rollout", codecs=CODECS)
        ref = store.publish(Packed(list(samples)).records("answer:0", {}), submission_id="one")
        found = reference.refer(samples, reference.of_group(store, ref, reference.recorded(list(samples))))
        store.close()
        return pickle.loads(pickle.dumps(found))

    return publish


def drawn(count: int, dtype: Any = np.uint8) -> list[Sample]:
    samples = add_supports(make_samples(count, 2, longest=24))
    for i, sample in enumerate(samples):
        sample.rollout_routed_experts = record(len(sample.tokens), seed=i).astype(dtype)
    return samples


FLAGS: dict[str, Any] = {
    "use_rollout_routing_replay": True, "rollout_top_p": 0.9, "micro_batch_size": 2, "global_batch_size": 8, "rollout_batch_size": 8,
    "parity_threshold": None,
}  # fmt: skip


def outcome(trainer: Trainer, samples: Sequence[Sample]) -> tuple[dict[str, float], dict[str, Any]]:
    metrics = trainer.train(0, samples)
    weights = {name: tensor.clone() for name, tensor in trainer.iter_hf_weights()}
    return {name: value for name, value in metrics.items() if not name.startswith("perf/")}, weights


@pytest.mark.parametrize("window", [1, 3])
def test_losses_and_weights_are_those_of_samples_that_carry_their_records(
    new_trainer: Callable[..., Trainer], stored: Stores, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps of four micro-batches, the second step's old log-probabilities scored before: two passes over them."""
    eager, own = outcome(new_trainer("qwen3_moe", **FLAGS), drawn(8))
    travelling = stored(drawn(8))
    assert all(isinstance(getattr(one, name), Stored) for one in travelling for name in reference.FIELDS)

    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    most, passes = 0, 0
    real = recorded.of_batch

    def watched(*given: Any) -> Any:
        nonlocal most, passes
        found = real(*given)
        alive.add(found["experts"])
        most, passes = max(most, len(alive)), passes + 1
        return found

    monkeypatch.setattr(recorded, "of_batch", watched)
    trainer = new_trainer("qwen3_moe", routing_replay_prefetch_microbatches=window, **FLAGS)
    lazy, theirs = outcome(trainer, travelling)
    assert lazy == eager
    assert own.keys() == theirs.keys()
    assert all((own[name] == theirs[name]).all() for name in own)
    assert passes == 4 + 8
    # The one in use, which the routers hold until the next, that one, and those ahead.
    assert most <= window + 2 < 8


def test_each_begins_those_after_it_and_no_more() -> None:
    made: list[int] = []

    def make(number: int) -> Callable[[], int]:
        return lambda: made.append(number) or number

    chain = [Later(make(number)) for number in range(6)]
    link([None, *chain, None], 2)
    assert chain[0].take() == 0
    assert [one._begun is not None for one in chain] == [False, True, True, False, False, False]
    assert [one.take() for one in chain[1:]] == [1, 2, 3, 4, 5]
    assert sorted(made) == [0, 1, 2, 3, 4, 5]
    assert chain[5].take() == 5  # a second pass


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16, np.int32, np.uint32, np.int64, np.uint64])
def test_routes_come_back_in_the_type_that_they_had(stored: Stores, dtype: Any) -> None:
    samples = drawn(1, dtype)
    samples[0].rollout_routed_experts[0] = np.iinfo(dtype).max
    for sample, travelling in zip(samples, stored(samples), strict=True):
        found = travelling.rollout_routed_experts.load()
        assert found.dtype == dtype
        assert (found == sample.rollout_routed_experts).all()
        assert travelling.rollout_top_p_log_probs.load().tolist() == sample.rollout_top_p_log_probs
        assert travelling.rollout_top_p_token_ids.load().tolist() == sample.rollout_top_p_token_ids


def test_a_record_that_is_gone_names_the_queue(stored: Stores, tmp_path: Path) -> None:
    (first, *_) = stored(drawn(1))
    for pack in (tmp_path / "queue").rglob("*.pack"):
        pack.unlink()
    with pytest.raises(VimeError, match="reading what was recorded of a sample") as refused:
        first.rollout_routed_experts.load()
    assert str(tmp_path / "queue") in str(refused.value)
