"""What Megatron-core 0.16.1 needs to run on a CPU, in one place.

Megatron names CUDA in a few spots that a CPU run reaches: buffers created on `"cuda"` or on
`torch.cuda.current_device()`, checks of tensor type names, gradient clipping by a fused kernel, and the random generator and its tracker.
Nothing in torch itself is changed: the Megatron modules listed here get a `torch` whose CUDA names answer with the CPU,
so that other libraries in the process see the real one. Applied only when the trainer's device is a CPU.
"""

from __future__ import annotations

import contextlib
import importlib
import types
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from vime.errors import VimeError

TESTED = ("0.16.1",)

# Each of these creates buffers on a CUDA device by name. `tests/vime/trainer/test_cpu.py` fails when one of them stops
# doing so (remove it here) or when the trainer reaches a new one.
_MODULES = (
    "megatron.core.dist_checkpointing.strategies.filesystem_async",
    "megatron.core.dist_checkpointing.strategies.state_dict_saver",
    "megatron.core.distributed.param_and_grad_buffer",
    "megatron.core.models.common.embeddings.rotary_pos_embedding",
    "megatron.core.optimizer.clip_grads",
    "megatron.core.optimizer.distrib_optimizer",
    "megatron.core.optimizer.optimizer",
    "megatron.core.pipeline_parallel.p2p_communication",
    "megatron.core.pipeline_parallel.schedules",
    "megatron.core.tensor_parallel.layers",
    "megatron.core.tensor_parallel.mappings",
    "megatron.core.transformer.moe.router",
    "megatron.core.transformer.moe.token_dispatcher",
    "megatron.core.utils",
)
_FACTORIES = ("arange", "empty", "full", "ones", "tensor", "zeros")


class _Stream:
    """Everything is in order, and done when it returns."""

    def wait_stream(self, other: object) -> None:
        return None

    def record_event(self) -> _Stream:
        return self

    def synchronize(self) -> None:
        return None


class _CpuCuda(types.ModuleType):
    """`torch.cuda` as Megatron sees it on a CPU: one device, nothing to wait for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)

    @staticmethod
    def current_device() -> torch.device:
        return torch.device("cpu")

    @staticmethod
    def synchronize(*_: object) -> None:
        return None

    Stream = current_stream = _Stream

    @staticmethod
    def stream(_: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class _CpuTorch(types.ModuleType):
    """`torch` with the factories' `device="cuda"` redirected to the CPU; everything else is torch's own."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.cuda = _CpuCuda("torch.cuda")
        for name in _FACTORIES:
            setattr(self, name, _on_cpu(getattr(torch, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _on_cpu(factory: Any) -> Any:
    def create(*args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        return factory(*args, device="cpu" if str(device).startswith("cuda") else device, **kwargs)

    return create


def _clip_by_total_norm(
    parameters: torch.Tensor | Sequence[torch.Tensor],
    max_norm: float,
    total_norm: float,
    use_decoupled_grad: bool = False,
) -> None:
    """Scale gradients in place by min(1, max_norm / (total_norm + 1e-6)), as Megatron does with its fused kernel."""
    if isinstance(parameters, torch.Tensor):
        parameters = [parameters]
    field = "decoupled_grad" if use_decoupled_grad else "grad"
    gradients = [g for p in parameters if (g := getattr(p, field, None)) is not None]
    scale = max_norm / (total_norm + 1.0e-6)
    if scale < 1.0 and gradients:
        torch._foreach_mul_([g.detach() for g in gradients], scale)


def _as_on_the_host(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    """What Megatron makes of a device tensor when it brings it to the host."""
    return tensor.numpy() if as_numpy and isinstance(tensor, torch.Tensor) else tensor


class _CpuRng:
    """Named random states, with the interface of Megatron's CUDA tracker, over torch's CPU generator."""

    def __init__(self) -> None:
        self.reset()

    def is_initialized(self) -> bool:
        return bool(self._states)

    def reset(self) -> None:
        self._states: dict[str, torch.Tensor] = {}

    def get_states(self) -> dict[str, torch.Tensor]:
        return dict(self._states)

    def set_states(self, states: dict[str, torch.Tensor]) -> None:
        self._states = dict(states)

    def add(self, name: str, seed: int) -> None:
        if name in self._states:
            raise ValueError(f"random state {name!r} exists already")
        self._states[name] = torch.Generator().manual_seed(seed).get_state()

    @contextlib.contextmanager
    def fork(self, name: str = "model-parallel-rng") -> Iterator[None]:
        outer = torch.get_rng_state()
        torch.set_rng_state(self._states[name])
        try:
            yield
        finally:
            self._states[name] = torch.get_rng_state()
            torch.set_rng_state(outer)


def apply() -> None:
    """Make this process's Megatron-core run on the CPU. Idempotent.

    Raises VimeError when megatron-core is a version that this file was not tested with.
    """
    import megatron.core

    if megatron.core.__version__ not in TESTED:
        raise VimeError(
            f"training on a CPU was tested with megatron-core {', '.join(TESTED)}, found {megatron.core.__version__}",
            hint=f"pip install megatron-core=={TESTED[-1]}",
        )
    replacement = _CpuTorch()
    for name in _MODULES:
        names = vars(importlib.import_module(name))
        if not isinstance(names["torch"], _CpuTorch):
            names["torch"] = replacement
    for name in ("megatron.core.optimizer.clip_grads", "megatron.core.optimizer.optimizer"):
        vars(importlib.import_module(name))["clip_grad_by_total_norm_fp32"] = _clip_by_total_norm
    dispatcher = vars(importlib.import_module("megatron.core.transformer.moe.token_dispatcher"))
    dispatcher["maybe_move_tensor_to_cpu"] = _as_on_the_host
    # Recomputation saves and restores the CUDA generator beside torch's own, which is all there is here.
    random = vars(importlib.import_module("megatron.core.tensor_parallel.random"))
    random["_get_cuda_rng_state"] = lambda *_, **__: torch.get_rng_state()
    random["_set_cuda_rng_state"] = lambda *_, **__: None


def seed_rng(seed: int, tensor_rank: int, expert_rank: int = 0) -> None:
    """Seed torch and Megatron's named states on the CPU: the same stream on data-parallel ranks, another on tensor ranks."""
    from megatron.core.tensor_parallel import random as megatron_random

    tracker = _CpuRng()
    tracker.add(megatron_random._DATA_PARALLEL_RNG_TRACKER_NAME, seed)
    tracker.add(megatron_random._MODEL_PARALLEL_RNG_TRACKER_NAME, seed + 2718 + tensor_rank)
    tracker.add(megatron_random._EXPERT_PARALLEL_RNG_TRACKER_NAME, seed + 1024 + 100 * expert_rank + tensor_rank)
    megatron_random._CUDA_RNG_STATE_TRACKER = tracker
    megatron_random._CUDA_RNG_STATE_TRACKER_INITIALIZED = True
    torch.manual_seed(seed)


@contextlib.contextmanager
def cuda_type_names() -> Iterator[None]:
    """While Megatron's optimizers are built: `Tensor.type()` answers "torch.cuda.FloatTensor" for a CPU tensor.

    Their constructors sort parameters by that name and refuse others; no numeric code runs inside this context.
    """
    original = torch.Tensor.type

    def named(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        return result.replace("torch.", "torch.cuda.", 1) if isinstance(result, str) else result

    torch.Tensor.type = named
    try:
        yield
    finally:
        torch.Tensor.type = original
