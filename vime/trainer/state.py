"""What a checkpoint holds of a learner: weights, optimizer state, schedule position. Out of the objects and back in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from vime.convert.families import Entry
from vime.convert.hf import named_weights
from vime.trainer.optimizer import sub_optimizers
from vime.trainer.reshard import Run

_MAIN = "main"


def model_state(model: torch.nn.Module, names: dict[str, Entry]) -> dict[str, torch.Tensor]:
    """This rank's weights, by their names in the whole model."""
    return {names[name].name: weight.detach() for name, weight in named_weights(model).items()}


@torch.no_grad()
def load_model_state(model: torch.nn.Module, state: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Fill in weights by their local names."""
    weights = named_weights(model)
    for name, value in state:
        weights[name].copy_(value)


@dataclass(frozen=True)
class Slot:
    """Where the state of one parameter is: `inner` steps `main`, elements from `first` on of the parameter. `separate`: main is
    a copy in higher precision. `group`: the options that it is stepped with."""

    inner: torch.optim.Optimizer
    main: torch.Tensor
    first: int
    separate: bool
    group: dict[str, Any]

    @property
    def number_device(self) -> torch.device:
        """Where torch keeps numbers of the state that are tensors (the steps done): kernels that read them have them beside the parameter."""
        beside = self.group.get("fused") or self.group.get("capturable")
        return self.main.device if beside else torch.device("cpu")


def slots(model: torch.nn.Module, optimizer: MegatronOptimizer) -> dict[str, Slot]:
    """By local name, for the parameters of which this rank steps some elements."""
    found = {}
    for sub in sub_optimizers(optimizer):
        if sub.optimizer is None:
            continue
        groups = {id(p): group for group in sub.optimizer.param_groups for p in group["params"]}
        for name, parameter in model.named_parameters():
            if isinstance(sub, DistributedOptimizer):
                if parameter not in sub.model_param_group_index_map:
                    continue
                group, place = sub.model_param_group_index_map[parameter]
                main = sub.optimizer.param_groups[group]["params"][place]
                first = sub._get_model_param_range_map(parameter)["param"].start
            else:
                copy = getattr(parameter, "main_param", None)
                main, first = parameter if copy is None else copy, 0
                if id(main) not in groups:
                    continue
            found[name] = Slot(sub.optimizer, main, first, main.dtype != parameter.dtype, groups[id(main)])
    return found


def optimizer_state(slots: dict[str, Slot], names: dict[str, Entry]) -> dict[str, dict[str, Any]]:
    """Runs of the state, by names in the whole model; empty ones before the first step."""
    found = {}
    for name, slot in slots.items():
        state = slot.inner.state.get(slot.main, {})
        tensors = {k: v for k, v in state.items() if isinstance(v, torch.Tensor) and v.shape == slot.main.shape}
        numbers = {k: v for k, v in state.items() if k not in tensors}
        if slot.separate:
            tensors[_MAIN] = slot.main.detach()
        found[names[name].name] = Run(slot.first, tensors, numbers).to_plain()
    return found


@torch.no_grad()
def load_optimizer_state(slots: dict[str, Slot], runs: Iterable[tuple[str, Run]]) -> None:
    """Undo `optimizer_state`, given runs of these slots' elements."""
    for name, run in runs:
        slot = slots[name]
        main = run.tensors.pop(_MAIN, None)
        if slot.separate and main is not None:
            slot.main.copy_(main.view(slot.main.shape))
        if run.tensors:
            state: dict[str, Any] = {k: v.view(slot.main.shape).to(slot.main.device) for k, v in run.tensors.items()}
            numbers = {
                k: v.to(slot.number_device, copy=True) if isinstance(v, torch.Tensor) else v
                for k, v in run.numbers.items()
            }
            slot.inner.state[slot.main] = state | numbers


def set_scheduler_position(scheduler: OptimizerParamScheduler, steps: int) -> None:
    """Continue the schedule after `steps`; its shape comes from the flags of this run."""
    scheduler.num_steps = steps
    scheduler.step(0)
