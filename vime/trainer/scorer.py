"""Samples through the model: packed into micro-batches, scored with or without gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from vime.trainer import batching, schedule
from vime.trainer.batching import MicroBatch, Step, TrainData
from vime.trainer.model import PolicyModel, Scoring

# Tokens in one forward pass without gradients, where no flag says otherwise.
_TOKENS = 8192


class Scorer:
    """Packs and scores samples with one model, under the temperature and chunk size of the flags."""

    def __init__(self, model: PolicyModel, args: Any, device: torch.device) -> None:
        self._model, self._args, self._device = model, args, device

    def pack(self, data: TrainData, samples: list[int], step: Step | None = None) -> MicroBatch:
        """These positions of `data`, weighted as part of `step` when given."""
        return batching.pack_micro_batch(
            data,
            samples,
            rotary=self._model.rotary,
            dtype=self._model.config.params_dtype,
            device=self._device,
            step=step,
            per_token=self._args.calculate_per_token_loss,
        )

    def forward(self, batch: MicroBatch, model: Callable[..., Any] | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and entropies of the response tokens; through `model` where it wraps the scorer's."""
        scoring = Scoring(batch.rows, batch.targets, self._args.rollout_temperature, self._args.log_probs_chunk_size)
        return (model or self._model)(batch.tokens, batch.packed, scoring)

    @torch.no_grad()
    def score(self, data: TrainData, batches: Sequence[MicroBatch]) -> list[torch.Tensor]:
        """Log-probabilities by sample, fp32 [response_length]; zeros for samples that no batch holds."""
        result = [torch.zeros(n, device=self._device) for n in data["response_lengths"]]
        for batch in batches:
            batch.put(result, self.forward(batch)[0])
        return result

    def score_all(self, data: TrainData) -> list[torch.Tensor]:
        """The same for every sample, in micro-batches of at most `--max-tokens-per-gpu` tokens."""
        limit = self._args.max_tokens_per_gpu or _TOKENS
        lengths = [float(n) for n in data["total_lengths"]]
        micro = schedule.pack_by_tokens(range(len(lengths)), lengths, limit)
        return self.score(data, [self.pack(data, members) for members in micro])

    def repack(self, data: TrainData, batches: Sequence[MicroBatch]) -> list[MicroBatch]:
        """These micro-batches, as larger ones where `--log-probs-max-tokens-per-gpu` allows it."""
        limit = self._args.log_probs_max_tokens_per_gpu
        if limit is None:
            return list(batches)
        samples = [i for batch in batches for i in batch.samples]
        lengths = [float(n) for n in data["total_lengths"]]
        return [self.pack(data, members) for members in schedule.pack_by_tokens(samples, lengths, limit)]
