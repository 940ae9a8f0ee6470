"""What a trainer holds leaves its device and comes back the same, with every view of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import make_samples

from vime.trainer.offload import GRADIENTS, OPTIMIZER, WEIGHTS, Offload
from vime.trainer.trainer import Trainer

CPU = torch.device("cpu")


@given(sizes=st.lists(st.integers(1, 300), min_size=1, max_size=6), order=st.permutations([WEIGHTS, OPTIMIZER]))
def test_groups_come_back_as_they_were(sizes: list[int], order: list[str]) -> None:
    torch.manual_seed(0)
    weights, moments = [torch.randn(n) for n in sizes], [torch.randn(n).bfloat16() for n in sizes]
    expected = [x.clone() for x in (*weights, *moments)]
    views = [w[: len(w) // 2 + 1] for w in weights]
    held = Offload(CPU)
    held.hold(WEIGHTS, [*weights, *views, None])
    held.hold(OPTIMIZER, moments)
    total = sum(x.untyped_storage().nbytes() for x in (*weights, *moments))
    assert held.move_out(order) == total
    assert held.move_out(order) == 0
    assert all(x.untyped_storage().nbytes() == 0 for x in (*weights, *moments))
    assert held.move_in(reversed(order)) == total
    assert all(torch.equal(a, b) for a, b in zip((*weights, *moments), expected, strict=True))
    assert all(torch.equal(view, w[: len(w) // 2 + 1]) for view, w in zip(views, weights, strict=True))


def test_a_storage_belongs_to_the_first_group_that_has_it_and_gradients_are_not_copied() -> None:
    shared, gradient = torch.ones(8), torch.ones(8)
    held = Offload(CPU)
    held.hold(WEIGHTS, [shared])
    held.hold(OPTIMIZER, [shared[:4]])
    held.hold(GRADIENTS, [gradient])
    assert held.move_out([OPTIMIZER]) == 0
    assert shared.sum() == 8
    held.move_out([GRADIENTS])
    held.move_in([GRADIENTS])
    assert gradient.untyped_storage().nbytes() == 32
    assert held.names == {WEIGHTS, OPTIMIZER, GRADIENTS}


def test_a_group_is_not_renewed_while_it_is_away() -> None:
    first, second = torch.ones(4), torch.full((4,), 2.0)
    held = Offload(CPU)
    held.hold(WEIGHTS, [first])
    held.move_out([WEIGHTS])
    held.hold(WEIGHTS, [second])
    held.move_in([WEIGHTS])
    assert first.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("distributed_optimizer", [False, True])
def test_training_goes_on_after_the_device_was_given_away(
    new_trainer: Callable[..., Trainer], distributed_optimizer: bool
) -> None:
    """Two trainers, one of which leaves its device between steps: the same losses and weights to the bit."""
    found = []
    for leaves in (False, True):
        trainer = new_trainer("qwen3", loss_type="sft_loss", use_distributed_optimizer=distributed_optimizer)
        losses = []
        for step in range(4):
            losses.append(trainer.train(step, make_samples(4, 2, seed=step))["train/loss"])
            if leaves:
                exported = {name: value.clone() for name, value in trainer.iter_hf_weights()}
                trainer.offload(keep_weights=True)
                assert all(torch.equal(value, exported[name]) for name, value in trainer.iter_hf_weights())
                moved = trainer.offload()
                assert moved["memory/offload_bytes"] > 0
                assert not any(p.untyped_storage().nbytes() for p in trainer.model.parameters())
                trainer.onload()
        found.append((losses, {name: value.clone() for name, value in trainer.iter_hf_weights()}))
    assert found[0][0] == found[1][0]
    assert all(torch.equal(found[0][1][name], value) for name, value in found[1][1].items())
