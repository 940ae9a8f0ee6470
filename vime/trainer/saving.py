"""Learners to checkpoints and back, on every rank at once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from vime.errors import VimeError
from vime.trainer import checkpoint, state
from vime.trainer.learner import Learner

log = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of one rank's place in a layout. All methods but `restore` are collectives."""

    def __init__(self, place: checkpoint.Place, shards: checkpoint.ShardLayout, device: torch.device) -> None:
        self._place, self._shards, self._device = place, shards, device

    def find(self, root: str | Path, step: int | None) -> int | None:
        """The newest complete checkpoint of `root`, or `step`, as rank 0 sees it; None when there is none."""
        return self._agree(lambda: checkpoint.find(root, self._shards, step))

    def load(self, root: str | Path, iteration: int, only: str | None = None) -> dict[str, Any]:
        """This rank's parts of a checkpoint, by kind."""
        return checkpoint.load(root, iteration, self._place, self._shards, self._device, only)

    def load_beside(self, root: str | Path, iteration: int, only: str | None = None) -> dict[str, Any]:
        """The same of a model that is saved with another; raises VimeError when it was not."""
        self.find(root, iteration)
        return self.load(root, iteration, only)

    def load_model(self, root: str | Path, step: int | None, model: torch.nn.Module, option: str) -> None:
        """Fill `model` from `step` or the newest checkpoint of `root`, which `option` named."""
        found = self.find(root, step)
        if found is None:
            raise VimeError("no complete checkpoint", where=f"{option} {root}")
        state.load_model_state(model, self.load(root, found, only="model")["model"])

    def save(
        self, root: str | Path, rollout_id: int, learner: Learner, run: dict[str, Any], optimizer: bool = True
    ) -> Path:
        """Write `learner` as it stands after rollout `rollout_id`, with what `run` says of the run (plain values, tensors)."""
        separate = learner.model.config.params_dtype != torch.float32
        return checkpoint.save(
            root,
            rollout_id,
            self._place,
            self._shards,
            {
                "model": lambda: state.model_state(learner.model),
                "optimizer": lambda: state.optimizer_state(learner.optimizer, separate) if optimizer else [],
                "rank": checkpoint.random_states,
                "run": lambda: run | {"rollout_id": rollout_id, "scheduler_steps": learner.scheduler.num_steps},
            },
        )

    @staticmethod
    def restore(learner: Learner, parts: dict[str, Any]) -> None:
        """Optimizer and schedule from a checkpoint's parts; the model's weights are loaded before the learner is made."""
        if parts["optimizer"]:
            state.load_optimizer_state(learner.optimizer, parts["optimizer"])
        else:
            log.warning("the checkpoint was saved with --no-save-optim: the optimizer starts anew")
        state.set_scheduler_position(learner.scheduler, parts["run"]["scheduler_steps"])

    def _agree(self, decide: Callable[[], Any]) -> Any:
        """Rank 0 decides, all get the answer, or the error."""
        outcome: list[Any] = [None, None]
        if self._place.rank == 0:
            try:
                outcome[0] = decide()
            except VimeError as error:
                outcome[1] = error
        if self._shards.world_size > 1:
            dist.broadcast_object_list(outcome, src=0)
        if outcome[1] is not None:
            raise outcome[1]
        return outcome[0]
