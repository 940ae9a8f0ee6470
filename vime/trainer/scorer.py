"""Samples through the model: packed into micro-batches, scored with or without gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch

from vime.trainer import batching, pipeline, schedule
from vime.trainer.batching import Context, MicroBatch, Step, TrainData
from vime.trainer.centering import Centering, centering, on_support
from vime.trainer.mismatch import Rule
from vime.trainer.model import PolicyModel, Scoring
from vime.trainer.routing import Routing, narrow, of_all_stages

# Tokens in one forward pass without gradients, where no flag says otherwise.
_TOKENS = 8192


@dataclass(frozen=True)
class TokenScores:
    """Of each response token of a micro-batch, fp32 [response tokens]. `log_probs` are of the distribution that was sampled
    from, renormalised over recorded supports; `entropy` is the full vocabulary's."""

    log_probs: torch.Tensor
    entropy: torch.Tensor
    centering: Centering | None = None


class Scorer:
    """Packs and scores samples with one model, under the temperature and chunk size of the flags.

    `complete`: recorded supports are all that could be sampled, so log-probabilities are renormalised over them.
    `weight`: the importance weight in the control term; None without score centering's.
    """

    def __init__(
        self,
        model: PolicyModel,
        args: Any,
        device: torch.device,
        *,
        complete: bool = False,
        weight: Rule | None = None,
        context: Context | None = None,
        routing: Routing | None = None,
    ) -> None:
        self._model, self._args, self._device = model, args, device
        self._complete, self._weight, self._context, self._routing = complete, weight, context, routing

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
            context=self._context,
            # What routers choose is recorded and replayed by sample, token by token.
            whole=self._routing is not None,
            multiple=self._model.share_of_row,
        )

    def forward(
        self, batch: MicroBatch, model: Callable[..., Any] | None = None, bare: bool = False
    ) -> TokenScores | torch.Tensor:
        """Scores of the response tokens, or before the last stage hidden states; through `model` where it wraps the scorer's.

        `bare` leaves recorded supports and routes aside: that is how a reference or a teacher is scored, which sampled
        from none of them.
        """
        if not bare:
            batch = batch.complete()
        if self._routing is not None:
            self._routing.use(*(None, None) if bare else (batch.experts, batch.known))
        picks = None if bare else batch.picks
        temperature, chunk = self._args.rollout_temperature, self._args.log_probs_chunk_size
        scoring = Scoring(batch.rows, batch.targets, temperature, chunk, picks)
        scores = (model or self._model)(batch.tokens, batch.packed, scoring)
        if isinstance(scores, torch.Tensor):
            return scores
        log_probs, picked, term = scores.log_probs, scores.picks, None
        tokens = len(log_probs)
        if picks is not None and self._complete:
            log_mass, picked = on_support(picked, picks.rows, tokens)
            log_probs = log_probs - log_mass
        if picks is not None and self._args.use_score_centering and batch.sampler is not None:
            own = self.control_term(picked, batch.sampler, picks.rows, tokens)
            term = Centering(*(batch.whole(x) for x in (own.term, own.sampler_mass, own.train_mass)))
        return TokenScores(batch.whole(log_probs), batch.whole(scores.entropy), term)

    def control_term(self, picked: torch.Tensor, sampler: torch.Tensor, rows: torch.Tensor, tokens: int) -> Centering:
        """Score centering under these flags; see `centering`."""
        return centering(picked, sampler, rows, tokens, self._weight, self._complete)

    def logits(self, batch: MicroBatch, model: Callable[..., Any]) -> torch.Tensor:
        """Logits of the response tokens over temperature, fp32 [response tokens, this rank's columns]; before the last stage
        hidden states."""
        raw = model(batch.tokens, batch.packed, Scoring(batch.rows, batch.targets, whole=True))
        return raw.float() / self._args.rollout_temperature if self._model.post_process else raw

    @torch.no_grad()
    def score(self, data: TrainData, batches: Sequence[MicroBatch], bare: bool = False) -> list[torch.Tensor]:
        """Log-probabilities by sample, fp32 [response_length], on the CPU; zeros for samples that no batch holds. Collective.

        With --use-routing-replay also data["routes"], the experts that were chosen; None for samples that no batch holds.
        """
        records = self._routing is not None and self._args.use_routing_replay and not bare
        chosen: list[npt.NDArray[Any] | None] = [None] * len(data["response_lengths"])
        result = [torch.zeros(n) for n in data["response_lengths"]]

        def evaluate(batch: MicroBatch) -> pipeline.Passed[None]:
            scores = self.forward(batch, bare=bare)
            if records:
                self._record(batch, chosen)
            if isinstance(scores, torch.Tensor):
                return scores
            batch.put(result, scores.log_probs.cpu())
            return scores.log_probs, None

        pipeline.run(self._model, batches, evaluate, train=False)
        if records:
            data["routes"] = of_all_stages(chosen)
        return pipeline.from_last(result, self._device)

    def _record(self, batch: MicroBatch, into: list[npt.NDArray[Any] | None]) -> None:
        """By sample, what the routers of this stage chose in the forward pass that was."""
        assert self._routing is not None
        chosen, cut = self._routing.chosen(), batch.packed.cut
        if chosen is None:
            return
        whole = (chosen if cut is None else cut.gather(chosen)).cpu()[: sum(batch.totals)]
        for sample, part in zip(batch.samples, whole.split(batch.totals), strict=True):
            into[sample] = part.numpy().astype(narrow(self._routing.experts))

    def score_all(self, data: TrainData) -> list[torch.Tensor]:
        """The same for every sample, in micro-batches of at most `--max-tokens-per-gpu` tokens."""
        limit = self._args.max_tokens_per_gpu or _TOKENS
        lengths = [float(n) for n in data["total_lengths"]]
        micro = schedule.pack_by_tokens(range(len(lengths)), lengths, limit)
        return self.score(data, [self.pack(data, members) for members in micro])

    def repack(self, data: TrainData, batches: Sequence[MicroBatch]) -> list[MicroBatch]:
        """These micro-batches, as larger ones where `--log-probs-max-tokens-per-gpu` allows it."""
        limit = self._args.log_probs_max_tokens_per_gpu
        # Ranks that share experts go through them together: all have as many micro-batches.
        if limit is None or self._model.config.expert_model_parallel_size > 1:
            return list(batches)
        samples = [i for batch in batches for i in batch.samples]
        lengths = [float(n) for n in data["total_lengths"]]
        found = [self.pack(data, members) for members in schedule.pack_by_tokens(samples, lengths, limit)]
        batching.link(found, self._args.routing_replay_prefetch_microbatches)
        return found
