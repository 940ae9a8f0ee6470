"""What a trainer rank holds on its device, moved to the host and back, so that an engine can use the device meanwhile.

Storages are emptied and refilled, not replaced: every view of them (Megatron's gradient buffers, main parameters, the optimizer's state)
stays what it was. The host copies lie in one pinned block a group, made once. Gradients are not copied: a step begins by clearing them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from vime.trainer.optimizer import inner_optimizers

if TYPE_CHECKING:
    from vime.trainer.learner import Learner

#: Groups; a second model's names end with these.
WEIGHTS, OPTIMIZER, GRADIENTS = "weights", "optimizer", "gradients"
_ALIGNMENT = 256


@dataclass
class _Held:
    """One storage on the device, its size in bytes and where in the host block it goes."""

    storage: torch.UntypedStorage
    nbytes: int
    offset: int


@dataclass
class _Group:
    held: list[_Held] = field(default_factory=list)
    host: torch.Tensor | None = None
    away: bool = False

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in self.held)


class Offload:
    """Groups of device tensors by name. `move_out` and `move_in` may be called in any order and repeated."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._groups: dict[str, _Group] = {}
        self._pinned: list[torch.Tensor] = []

    def hold(self, name: str, tensors: Iterable[torch.Tensor | None]) -> None:
        """What group `name` consists of now. Storages that an earlier group has, and those of other devices, are left out.

        May be repeated while the group is on the device: an optimizer's state appears with its first step.
        """
        group = self._groups.setdefault(name, _Group())
        if group.away:
            return
        taken = {id_ for other, g in self._groups.items() if other != name for id_ in map(_identity, g.held)}
        held: list[_Held] = []
        offset = 0
        for tensor in tensors:
            if tensor is None or tensor.device != self._device:
                continue
            storage = tensor.untyped_storage()
            if storage._cdata in taken or not storage.nbytes():
                continue
            taken.add(storage._cdata)
            held.append(_Held(storage, storage.nbytes(), offset))
            offset += -(-storage.nbytes() // _ALIGNMENT) * _ALIGNMENT
        group.held = held

    @property
    def names(self) -> set[str]:
        return set(self._groups)

    def move_out(self, names: Iterable[str]) -> int:
        """Free the device memory of these groups; what they hold (gradients apart) is kept on the host. Returns the bytes freed."""
        freed = 0
        for name in names:
            group = self._groups.get(name)
            if group is None or group.away or not group.held:
                continue
            if not name.endswith(GRADIENTS):
                host = self._host(group)
                for one in group.held:
                    _span(host, one).copy_(_bytes(one.storage), non_blocking=True)
                self._wait()
            for one in group.held:
                one.storage.resize_(0)
            group.away = True
            freed += group.nbytes
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        return freed

    def move_in(self, names: Iterable[str]) -> int:
        """Take the memory of these groups back and fill it as it was. Returns the bytes taken."""
        taken = 0
        for name in names:
            group = self._groups.get(name)
            if group is None or not group.away:
                continue
            for one in group.held:
                one.storage.resize_(one.nbytes)
                if not name.endswith(GRADIENTS):
                    assert group.host is not None
                    _bytes(one.storage).copy_(_span(group.host, one), non_blocking=True)
            group.away = False
            taken += group.nbytes
        self._wait()
        return taken

    def close(self) -> None:
        """Unpin the host's copies."""
        for block in self._pinned:
            torch.cuda.cudart().cudaHostUnregister(block.data_ptr())
        self._pinned = []

    def _host(self, group: _Group) -> torch.Tensor:
        needed = max((one.offset + one.nbytes for one in group.held), default=0)
        if group.host is None or group.host.numel() < needed:
            group.host = torch.empty(needed, dtype=torch.uint8)
            if self._device.type == "cuda":
                # Pinned as it is: torch's own pinned allocator rounds each block up to a power of two. Unpinned works too, slower.
                with contextlib.suppress(Exception):
                    if int(torch.cuda.cudart().cudaHostRegister(group.host.data_ptr(), needed, 0)) == 0:
                        self._pinned.append(group.host)
        return group.host

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def weights_of(learner: Learner) -> Iterator[torch.Tensor | None]:
    """Parameters and buffers of its model, and the buffers that parameters are views of."""
    yield from learner.model.parameters()
    yield from learner.model.buffers()
    yield from (buffer.param_data for buffer in _buffers(learner))


def gradients_of(learner: Learner) -> Iterator[torch.Tensor | None]:
    yield from (buffer.grad_data for buffer in _buffers(learner))


def optimizer_of(learner: Learner) -> Iterator[torch.Tensor | None]:
    """fp32 main parameters and moments."""
    for inner in inner_optimizers(learner.optimizer):
        for group in inner.param_groups:
            yield from group["params"]
        for state in inner.state.values():
            yield from (value for value in state.values() if isinstance(value, torch.Tensor))


def _buffers(learner: Learner) -> list[Any]:
    return [*learner.ddp.buffers, *learner.ddp.expert_parallel_buffers]


def timed(began: float, device: torch.device, moved: int, what: str) -> dict[str, float]:
    """What a move took, as metrics: seconds, bytes, and what the process still has reserved on its device."""
    metrics = {f"perf/{what}_time": time.perf_counter() - began, f"memory/{what}_bytes": float(moved)}
    if device.type == "cuda":
        metrics[f"memory/after_{what}_bytes"] = float(torch.cuda.memory_reserved(device))
    return metrics


def _identity(one: _Held) -> int:
    return int(one.storage._cdata)


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _span(host: torch.Tensor, one: _Held) -> torch.Tensor:
    return host[one.offset : one.offset + one.nbytes]
