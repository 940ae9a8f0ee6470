"""Learners to checkpoints and back, on every rank at once, whatever the layout that saved."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.utils import _pytree

from vime.convert.cut import Cut
from vime.convert.families import Entry
from vime.convert.hf import named_weights
from vime.convert.shape import ModelShape
from vime.errors import VimeError
from vime.trainer import checkpoint, reshard, state, torch_dist
from vime.trainer.checkpoint import Saved
from vime.trainer.learner import Learner
from vime.trainer.parallel import Layout

log = logging.getLogger(__name__)
T = TypeVar("T")


class Checkpoints:
    """The checkpoints of one rank. All methods are collectives."""

    def __init__(self, rank: int, layout: Layout, sharded: bool) -> None:
        self._place = checkpoint.Place(rank, layout, sharded)
        self._writing: list[checkpoint.Writing] = []

    @property
    def cut(self) -> Cut:
        """What of the model this rank holds."""
        return self._place.cut

    @property
    def decides(self) -> bool:
        """Whether this is rank 0, which decides for all and speaks for them."""
        return self._place.rank == 0

    def find(self, root: str | Path, step: int | None) -> int | None:
        """The newest complete checkpoint of `root`, or `step`, as rank 0 sees it; None when there is none."""
        return self._agree(lambda: checkpoint.find(root, step))

    def find_megatrons(self, root: str | Path, step: int | None) -> Path | None:
        """The same of a checkpoint that Megatron wrote: its folder."""
        return self._agree(lambda: torch_dist.find(root, step))

    def fill_from_megatrons(self, folder: Path, model: torch.nn.Module) -> None:
        """Its weights into `model`."""
        self._together(lambda: torch_dist.load(model, folder))

    def open(self, root: str | Path, iteration: int) -> Saved:
        saved = self._together(lambda: Saved(root, iteration))
        self._together(lambda: saved.run)
        return saved

    def open_beside(self, root: str | Path, iteration: int) -> Saved:
        """The same of a model that is saved with another; raises VimeError when it was not."""
        self.find(root, iteration)
        return self.open(root, iteration)

    def fill(self, model: torch.nn.Module, shape: ModelShape, saved: Saved) -> None:
        """The weights of `saved` into `model`."""
        wanted = self._names(model, shape)
        self._together(lambda: state.load_model_state(model, reshard.weights(saved, wanted, shape, self._place.cut)))

    def fill_from(
        self, root: str | Path, step: int | None, model: torch.nn.Module, shape: ModelShape, option: str
    ) -> None:
        """Fill `model` from `step` or the newest checkpoint of `root`, which `option` named; it may be Megatron's."""
        folder = self.find_megatrons(root, step)
        if folder is not None:
            self.fill_from_megatrons(folder, model)
            return
        found = self.find(root, step)
        if found is None:
            raise VimeError("no complete checkpoint", where=f"{option} {root}")
        self.fill(model, shape, self.open(root, found))

    def save(
        self,
        root: str | Path,
        rollout_id: int,
        learner: Learner,
        shape: ModelShape,
        run: dict[str, Any],
        *,
        optimizer: bool = True,
        later: bool = False,
        megatrons: bool = False,
    ) -> Path:
        """Write `learner` as it stands after rollout `rollout_id`, with what `run` says of the run (plain values, tensors).

        `megatrons`: its weights also as Megatron writes them.
        `later`: from a copy, beside what follows; it counts from the next `finish` on.
        """
        names = self._names(learner.model, shape)
        slots = state.slots(learner.model, learner.optimizer)
        copy = _copied if later else lambda value: value
        writing = checkpoint.begin(
            root,
            rollout_id,
            self._place,
            {
                "model": lambda: copy(state.model_state(learner.model, names)),
                "optimizer": lambda: copy(state.optimizer_state(slots, names) if optimizer else {}),
                "rank": checkpoint.random_states,
                "run": lambda: run | {"rollout_id": rollout_id, "scheduler_steps": learner.scheduler.num_steps},
            },
            (lambda folder: torch_dist.save(learner.model, shape, folder, rollout_id)) if megatrons else None,
        )
        if later:
            self._writing.append(writing)
            return writing.final
        return writing.finish()

    def finish(self) -> None:
        """Complete what is being written, in the order in which it was begun."""
        while self._writing:
            self._writing.pop(0).finish()

    def restore(self, learner: Learner, shape: ModelShape, saved: Saved, *, optimizer: bool = True) -> None:
        """Optimizer and schedule; the model's weights are filled in before the learner is made."""
        names, slots = self._names(learner.model, shape), state.slots(learner.model, learner.optimizer)
        wanted = {name: (names[name], slot.first, slot.first + slot.main.numel()) for name, slot in slots.items()}
        if not self._agree(lambda: bool(saved.read(saved.places[0].optimizer_file))):
            log.warning("the checkpoint was saved with --no-save-optim: the optimizer starts anew")
        elif optimizer:
            same = (saved.layout, saved.sharded) == (self._place.layout, self._place.sharded)
            runs = (
                reshard.own_optimizer(saved, wanted, self._place)
                if same
                else reshard.optimizer(saved, wanted, shape, self._place.cut)
            )
            self._together(lambda: state.load_optimizer_state(slots, runs))
        state.set_scheduler_position(learner.scheduler, saved.run["scheduler_steps"])

    def restore_random_states(self, saved: Saved) -> None:
        """Those of this rank; another layout's are of no use, and new ones stay."""
        if saved.layout != self._place.layout:
            log.warning("random states are not restored: %s was saved by %s", saved.path, saved.layout)
            return
        checkpoint.set_random_states(self._together(lambda: saved.read(f"rank_{self._place.rank:05d}.pt")))

    def _names(self, model: torch.nn.Module, shape: ModelShape) -> dict[str, Entry]:
        return reshard.entries_of(list(named_weights(model)), shape, self._place.cut)

    def _agree(self, decide: Callable[[], T]) -> T:
        """Rank 0 decides, all get the answer, or the error."""
        outcome: list[Any] = [None, None]
        if self.decides:
            try:
                outcome[0] = decide()
            except VimeError as error:
                outcome[1] = error
        if self._place.layout.world_size > 1:
            dist.broadcast_object_list(outcome, src=0)
        if outcome[1] is not None:
            raise outcome[1]
        return outcome[0]  # type: ignore[no-any-return]

    def _together(self, act: Callable[[], T]) -> T:
        """Do it on each rank; the first error of any is raised on all."""
        value, error = None, None
        try:
            value = act()
        except VimeError as raised:
            error = raised
        errors = [error]
        if self._place.layout.world_size > 1:
            errors = [None] * self._place.layout.world_size
            dist.all_gather_object(errors, error)
        for one in errors:
            if one is not None:
                raise one
        return value  # type: ignore[return-value]


def _copied(value: Any) -> Any:
    """A copy in host memory that nothing else holds."""
    return _pytree.tree_map(lambda x: x.detach().to("cpu", copy=True) if isinstance(x, torch.Tensor) else x, value)
