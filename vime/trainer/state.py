"""What a checkpoint holds of a trainer: parameters, optimizer state, schedule position. Out of the objects and back in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from vime.convert.hf import named_weights
from vime.trainer.optimizer import inner_optimizers


def model_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """This rank's weights by name."""
    return {name: weight.detach() for name, weight in named_weights(model).items()}


@torch.no_grad()
def load_model_state(model: torch.nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Undo `model_state`."""
    weights = named_weights(model)
    for name, value in state.items():
        weights[name].copy_(value)


def optimizer_state(optimizer: MegatronOptimizer, separate_main: bool) -> list[dict[str, Any]]:
    """State of each torch optimizer underneath; with `separate_main` also the fp32 main parameters that it steps.

    In fp32 the main parameters are the model's own.
    """
    return [
        {"torch": inner.state_dict(), "main": [p.detach() for p in _main_parameters(inner)] if separate_main else []}
        for inner in inner_optimizers(optimizer)
    ]


@torch.no_grad()
def load_optimizer_state(optimizer: MegatronOptimizer, states: list[dict[str, Any]]) -> None:
    """Undo `optimizer_state`."""
    for inner, state in zip(inner_optimizers(optimizer), states, strict=True):
        inner.load_state_dict(state["torch"])
        for parameter, value in zip(_main_parameters(inner), state["main"], strict=bool(state["main"])):
            parameter.copy_(value)


def set_scheduler_position(scheduler: OptimizerParamScheduler, steps: int) -> None:
    """Continue the schedule after `steps`; its shape comes from the flags of this run."""
    scheduler.num_steps = steps
    scheduler.step(0)


def _main_parameters(inner: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in inner.param_groups:
        yield from group["params"]
