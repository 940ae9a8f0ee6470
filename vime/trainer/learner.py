"""One model that learns: gradient buffers, optimizer, schedule, and an optimizer step over a step's micro-batches."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from vime.errors import VimeError
from vime.trainer import optimizer as megatron
from vime.trainer import parallel, pipeline
from vime.trainer.batching import MicroBatch
from vime.trainer.objective import Objective

Sums = dict[str, float]


class Learner:
    """Trains `model`, which must hold its weights already: the optimizer copies what it starts from."""

    def __init__(self, model: Any, args: Any, device: torch.device, steps_per_rollout: int) -> None:
        self._args, self._device = args, device
        self.model = model
        self.ddp = megatron.wrap_model(model, args)
        self.optimizer = megatron.build_optimizer(self.ddp, args, device)
        self.scheduler = megatron.build_scheduler(self.optimizer, args, steps_per_rollout)

    @property
    def lr(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def forget(self) -> None:
        """Drop what the optimizer remembers of gradients: its next step is a first step."""
        for inner in megatron.inner_optimizers(self.optimizer):
            inner.state.clear()

    def step(
        self,
        batches: Sequence[MicroBatch],
        evaluate: Callable[[MicroBatch], Objective | torch.Tensor],
        names: Sequence[int],
        where: str,
        gate: Callable[[], None] | None = None,
    ) -> Sums:
        """Forward and backward over this rank's micro-batches, then one update; collective. Returns the metrics, equal on all ranks.

        `evaluate` gives the objective, or hidden states where another stage goes on.
        `names` are the sample indices by position. `gate` is called between backward and update: what it raises leaves the
        weights alone. So does a loss or gradient that is not finite, which raises VimeError naming the samples.
        """
        self.ddp.zero_grad_buffer()
        self.optimizer.zero_grad()

        def passed(batch: MicroBatch) -> pipeline.Passed[tuple[MicroBatch, Objective]]:
            found = evaluate(batch)
            if isinstance(found, torch.Tensor):
                return found
            return found.loss, (batch, dataclasses.replace(found, loss=found.loss.detach()))

        shares = pipeline.run(self.ddp, batches, passed, train=True)
        # Looked at after the last one: a GPU would stand still each time.
        finite = torch.stack([share.loss for _, share in shares]).isfinite().tolist() if shares else []
        bad = [
            i
            for good, (batch, share) in zip(finite, shares, strict=True)
            if not good
            for i in _wrong_samples(batch, share.token_loss, names)
        ]
        self._require_finite(all(finite), bad, where)
        if gate is not None:
            gate()
        megatron.finalize_gradients(self.ddp)
        self.scheduler.step(1)
        norm = megatron.clip_and_step(self.optimizer, self._args.clip_grad)
        if not math.isfinite(norm):
            raise VimeError(f"the gradient norm is {norm}; weights are as before this step", where=where)
        sums = parallel.sum_metrics(_add([share.metrics for _, share in shares]))
        return pipeline.told_by_last(sums) | {"grad_norm": norm}

    def _require_finite(self, finite: bool, bad: list[int], where: str) -> None:
        if parallel.everyone_agrees(finite, self._device):
            return
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, bad)
        samples = sorted({index for part in found for index in part})
        raise VimeError(
            f"the loss is not finite; samples with a non-finite token loss: {samples[:16] or 'none, the sum overflows'}",
            where=where,
            hint="weights are as before this step; look at these samples' log-probabilities and rewards",
        )


def _wrong_samples(batch: MicroBatch, token_loss: torch.Tensor | None, names: Sequence[int]) -> list[int]:
    if token_loss is None:
        return sorted(names[i] for i in batch.samples)
    wrong = (~token_loss.isfinite() & (batch.weights != 0)).nonzero()[:, 0].tolist()
    return sorted({names[batch.sample_at(token)] for token in wrong})


def _add(shares: list[dict[str, torch.Tensor]]) -> Sums:
    total: Sums = {}
    for share in shares:
        for name, value in zip(share, torch.stack(list(share.values())).tolist() if share else (), strict=True):
            total[name] = total.get(name, 0.0) + value
    return total
