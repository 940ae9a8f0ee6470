"""The CPU adaptation stays inside the Megatron modules that need it, and knows the version it was written for."""

from __future__ import annotations

import importlib
import inspect

import megatron.core
import pytest
import torch
from megatron.core.tensor_parallel import get_cuda_rng_tracker

from vime.errors import VimeError
from vime.trainer import cpu


def test_torch_itself_is_left_alone() -> None:
    cpu.apply()
    assert "vime" not in inspect.getsourcefile(torch.cuda.current_device)
    assert torch.zeros(1).type() == "torch.FloatTensor"
    with cpu.cuda_type_names():
        assert torch.zeros(1).type() == "torch.cuda.FloatTensor"
    assert torch.zeros(1).type() == "torch.FloatTensor"


@pytest.mark.parametrize("name", cpu._MODULES)
def test_each_adapted_module_still_names_cuda(name: str) -> None:
    source = inspect.getsource(importlib.import_module(name))
    assert "torch.cuda." in source or "device='cuda'" in source or 'device="cuda"' in source


def test_adapted_modules_create_on_the_cpu() -> None:
    cpu.apply()
    from megatron.core.optimizer import clip_grads

    assert clip_grads.torch.zeros(2, device="cuda").device.type == "cpu"
    assert clip_grads.torch.zeros(2, device="meta").device.type == "meta"
    assert isinstance(torch.zeros(1), clip_grads.torch.Tensor)


def test_another_megatron_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(megatron.core, "__version__", "0.99.0")
    with pytest.raises(VimeError, match=r"tested with megatron-core 0\.16\.1, found 0\.99\.0"):
        cpu.apply()


def test_clipping_scales_to_the_norm() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(3)) for _ in range(2)]
    for p in parameters:
        p.grad = torch.tensor([3.0, 0.0, 4.0])
    cpu._clip_by_total_norm(parameters, 1.0, 50**0.5)
    total = sum(p.grad.square().sum() for p in parameters).sqrt()
    assert total.item() == pytest.approx(1.0, rel=1e-5)
    cpu._clip_by_total_norm(parameters, 10.0, 1.0)  # within the norm: untouched
    assert sum(p.grad.square().sum() for p in parameters).sqrt().item() == pytest.approx(1.0, rel=1e-5)


def test_named_random_states_are_independent_and_restorable() -> None:
    cpu.seed_rng(7, tensor_rank=0)
    outer = torch.rand(3)
    cpu.seed_rng(7, tensor_rank=0)
    tracker = get_cuda_rng_tracker()
    states = tracker.get_states()
    with tracker.fork():
        inner = torch.rand(3)
    assert torch.equal(torch.rand(3), outer)  # the fork did not move the outer stream
    with tracker.fork():
        later = torch.rand(3)
    assert not torch.equal(inner, later)
    tracker.set_states(states)
    with tracker.fork():
        assert torch.equal(torch.rand(3), inner)
    cpu.seed_rng(7, tensor_rank=1)
    with get_cuda_rng_tracker().fork():
        assert not torch.equal(torch.rand(3), inner)  # tensor ranks draw differently
