"""What of a rollout is computed once, before its first update: log-probabilities under other and earlier weights, values, advantages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vime.errors import VimeError
from vime.hooks import call_hook
from vime.trainer import estimators, parallel
from vime.trainer.batching import MicroBatch, Step, TrainData
from vime.trainer.clock import Clock
from vime.trainer.critic import Critic
from vime.trainer.loading import REFERENCE, TEACHER
from vime.trainer.model import PolicyModel
from vime.trainer.scorer import Scorer
from vime.trainer.weights import NamedWeights


@dataclass(frozen=True)
class Preparation:
    """The parts of one rank's trainer that it needs."""

    args: Any
    model: PolicyModel
    weights: NamedWeights
    scorer: Scorer
    critic: Critic | None
    device: torch.device

    def fill(
        self,
        rollout_id: int,
        data: TrainData,
        steps: Sequence[Step],
        packs: Sequence[list[MicroBatch]],
        clock: Clock,
    ) -> dict[str, float]:
        """Fill the columns that need a forward pass before the first update, and the advantages; collective. Returns metrics.

        The policy does not move before the first step's update, so that step's own log-probabilities are its old ones:
        unless advantages depend on them, only later steps are scored here, and the first step adds its own.
        """
        args, every = self.args, [batch for step in packs for batch in step]
        for name, column in ((REFERENCE, "ref_log_probs"), (TEACHER, "teacher_log_probs")):
            if name in self.weights:
                with self.weights.as_model(name):
                    call_hook(args, "custom_megatron_before_log_prob_hook_path", args, self.model, f"{name}_")
                    data[column] = self.scorer.score(data, self.scorer.repack(data, every), bare=True)
                clock.lap(column)
        if args.use_rollout_logprobs:
            if "rollout_log_probs" not in data:
                raise VimeError("--use-rollout-logprobs, but the rollout carries no log-probabilities")
            data["old_log_probs"] = data["rollout_log_probs"]
        else:
            call_hook(args, "custom_megatron_before_log_prob_hook_path", args, self.model, "")
            needed = packs if estimators.needs_old_log_probs(args) else packs[1:]
            own = self.scorer.repack(data, [batch for step in needed for batch in step])
            data["old_log_probs"] = self.scorer.score(data, own)
            clock.lap("log_probs")
        if self.critic is not None:
            data["values"] = self.critic.values(data, self.scorer.repack(data, every))
            clock.lap("values")
        if args.disable_compute_advantages_and_returns:
            return {}
        sums = estimators.compute(args, data, self._sum_over_data)
        if args.rollout_data_postprocess_path:
            estimators.postprocess(args, rollout_id, data)
        tokens = sum(step.tokens for step in steps)
        return {f"train/{name}": x / max(tokens, 1) for name, x in parallel.sum_metrics(sums).items()}

    def _sum_over_data(self, values: torch.Tensor) -> torch.Tensor:
        return parallel.sum_over_data(values.to(self.device)).cpu()
