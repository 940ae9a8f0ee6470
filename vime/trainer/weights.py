"""Named copies of the weights in (pinned) host memory: the reference policy, a teacher, the policy itself meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from vime.convert.hf import named_weights

Weights = dict[str, torch.Tensor]


class NamedWeights:
    """Copies of one model's parameters by name. Only one set is in the model at a time."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._copies: dict[str, Weights] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._copies

    @torch.no_grad()
    def keep(self, name: str) -> None:
        """Copy what the model holds now under `name`, into the same memory when it was kept before."""
        held = self._copies.setdefault(name, {})
        for key, parameter in named_weights(self._model).items():
            if key not in held:
                held[key] = torch.empty(parameter.shape, dtype=parameter.dtype, pin_memory=parameter.is_cuda)
            held[key].copy_(parameter, non_blocking=True)
        self._wait()

    @torch.no_grad()
    def put(self, name: str) -> None:
        """Copy `name` into the model. Raises KeyError when it was never kept."""
        held = self._copies[name]
        for key, parameter in named_weights(self._model).items():
            parameter.copy_(held[key], non_blocking=True)
        self._wait()

    @contextlib.contextmanager
    def as_model(self, name: str) -> Iterator[None]:
        """Inside the context the model holds `name`; afterwards it holds what it held before, to the bit."""
        self.keep("")
        try:
            self.put(name)
            yield
        finally:
            self.put("")

    def _wait(self) -> None:
        if any(p.is_cuda for p in self._model.parameters()):
            torch.cuda.synchronize()
