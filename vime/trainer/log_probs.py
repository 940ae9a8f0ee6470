"""Log-probabilities and entropy of tokens under a vocabulary that is cut over tensor-parallel ranks.

All in fp32, whatever the logits are in, after division by the rollout temperature:
    log p(y) = l_y / T - log sum_v exp(l_v / T)          H = log Z - sum_v p_v l_v / T
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Picks:
    """Further tokens whose log-probabilities are wanted: `ids` int64 [picks] over the whole vocabulary, at the scored
    positions `rows` int64 [picks], ascending."""

    rows: torch.Tensor
    ids: torch.Tensor

    def to(self, device: torch.device) -> Picks:
        return Picks(self.rows.to(device), self.ids.to(device))

    def chunks(self, size: int, total: int) -> list[Picks]:
        """The picks of each run of `size` of `total` positions, rows counted from its first."""
        starts = torch.arange(0, total, size, device=self.rows.device)
        ends = torch.searchsorted(self.rows, starts + size).tolist()
        return [
            Picks(self.rows[a:b] - start, self.ids[a:b])
            for a, b, start in zip([0, *ends], ends, starts.tolist(), strict=False)
        ]


@dataclass(frozen=True)
class Scores:
    """Of each scored position, fp32: `log_probs` [n] of its target and `entropy` [n]; of each pick, `picks` [picks]."""

    log_probs: torch.Tensor
    entropy: torch.Tensor
    picks: torch.Tensor | None = None


class _VocabLogProb(torch.autograd.Function):
    """Gradients: d log p(y) / d l_v = (1[v = y] - p_v) / T;  d H / d l_v = -p_v (log p_v + H) / T."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        targets: torch.Tensor,
        temperature: float,
        first: int,
        group: dist.ProcessGroup | None,
        picks: Picks | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        scaled = logits.float()
        scaled = scaled.clone() if scaled.data_ptr() == logits.data_ptr() else scaled
        if temperature != 1.0:
            scaled.div_(temperature)
        width = scaled.shape[-1]
        # A rank whose whole block is padding owns no column.
        peak = scaled.amax(-1) if width else scaled.new_full(scaled.shape[:1], float("-inf"))
        _reduce(peak, dist.ReduceOp.MAX, group)
        scaled.sub_(peak[:, None])
        every = torch.arange(len(targets), device=targets.device)
        at_target, target_place = _look_up(scaled, every, targets - first)
        at_picks, pick_place = peak.new_zeros(0), None
        if picks is not None:
            at_picks, pick_place = _look_up(scaled, picks.rows, picks.ids - first)
        probabilities = scaled.exp()
        total = probabilities.sum(-1)
        weighted = (probabilities * scaled).sum(-1)
        log_prob, entropy, at_picks, total, _ = _normalise(at_target, total, weighted, at_picks, 0.0, group, picks)
        probabilities.div_(total[:, None])
        ctx.save_for_backward(probabilities, entropy, *target_place, *(pick_place or ()))
        ctx.pick_rows = None if picks is None else picks.rows
        ctx.temperature, ctx.dtype = temperature, logits.dtype
        ctx.set_materialize_grads(False)
        return log_prob, entropy, at_picks

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any,
        grad_log_prob: torch.Tensor | None,
        grad_entropy: torch.Tensor | None,
        grad_picks: torch.Tensor | None,
    ) -> tuple[torch.Tensor | None, None, None, None, None, None]:
        probabilities, entropy, column, owned, *pick_place = ctx.saved_tensors
        if grad_log_prob is None and grad_entropy is None and grad_picks is None:
            return None, None, None, None, None, None
        # Each log-probability takes its gradient times p_v from every column and adds it at its own.
        by_row = torch.zeros_like(entropy) if grad_log_prob is None else grad_log_prob
        if grad_picks is not None and ctx.pick_rows is not None:
            by_row = by_row.index_add(0, ctx.pick_rows, grad_picks)
        grad = probabilities * -by_row[:, None]
        if grad.shape[-1]:
            if grad_log_prob is not None:
                grad.scatter_add_(-1, column[:, None], (grad_log_prob * owned)[:, None])
            if grad_picks is not None and ctx.pick_rows is not None:
                pick_column, pick_owned = pick_place
                grad.index_put_((ctx.pick_rows, pick_column), grad_picks * pick_owned, accumulate=True)
        if grad_entropy is not None:
            # xlogy: 0 log 0 = 0 for probabilities that underflow.
            entropy_part = torch.xlogy(probabilities, probabilities).add_(probabilities * entropy[:, None])
            grad.add_(entropy_part.mul_(-grad_entropy[:, None]))
        return grad.div_(ctx.temperature).to(ctx.dtype), None, None, None, None, None


class _FusedVocabLogProb(torch.autograd.Function):
    """The same on a GPU, by kernels that read the logits once each way and write the gradient over them: no fp32 copy of them exists."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        targets: torch.Tensor,
        temperature: float,
        first: int,
        width: int,
        group: dist.ProcessGroup | None,
        picks: Picks | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        from vime.trainer import fused

        peak, total, weighted = fused.vocab_sums(logits, width, temperature)
        own = logits[:, :width]
        at_target, target_place = _look_up(own, torch.arange(len(targets), device=targets.device), targets - first)
        at_picks, pick_place = logits.new_zeros(0), None
        if picks is not None:
            at_picks, pick_place = _look_up(own, picks.rows, picks.ids - first)
        top = peak.clone()
        _reduce(top, dist.ReduceOp.MAX, group)
        shrink = (peak - top).exp()
        at_target, at_picks = at_target.float() / temperature, at_picks.float() / temperature
        log_prob, entropy, at_picks, _, log_total = _normalise(
            at_target, total * shrink, weighted * shrink, at_picks, top, group, picks
        )
        ctx.save_for_backward(logits, log_total, entropy, *target_place, *(pick_place or ()))
        ctx.pick_rows = None if picks is None else picks.rows
        ctx.temperature, ctx.width = temperature, width
        ctx.set_materialize_grads(False)
        return log_prob, entropy, at_picks

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any,
        grad_log_prob: torch.Tensor | None,
        grad_entropy: torch.Tensor | None,
        grad_picks: torch.Tensor | None,
    ) -> tuple[torch.Tensor | None, ...]:
        from vime.trainer import fused

        logits, log_total, entropy, column, owned, *pick_place = ctx.saved_tensors
        if grad_log_prob is None and grad_entropy is None and grad_picks is None:
            return (None,) * 7
        zero = torch.zeros_like(entropy)
        by_row = zero if grad_log_prob is None else grad_log_prob.contiguous()
        at_target = by_row * owned
        if grad_picks is not None and ctx.pick_rows is not None:
            by_row = by_row.index_add(0, ctx.pick_rows, grad_picks)
        by_entropy = zero if grad_entropy is None else grad_entropy.contiguous()
        grad = fused.vocab_gradient(
            logits, column, log_total, entropy, by_row, at_target, by_entropy, ctx.width, ctx.temperature
        )
        if grad_picks is not None and ctx.pick_rows is not None:
            pick_column, pick_owned = pick_place
            values = (grad_picks * pick_owned / ctx.temperature).to(grad.dtype)
            grad.index_put_((ctx.pick_rows, pick_column), values, accumulate=True)
        return (grad, *(None,) * 6)


def _normalise(
    at_target: torch.Tensor,
    total: torch.Tensor,
    weighted: torch.Tensor,
    at_picks: torch.Tensor,
    top: torch.Tensor | float,
    group: dist.ProcessGroup | None,
    picks: Picks | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """What a row's logits l come to over all ranks: log-probability of the target, entropy, log-probabilities of the picks, sum, logarithm of the sum.

    `total` [n] is this rank's part of sum e^(l - top), `weighted` [n] of sum e^(l - top) l, `at_target` [n] and `at_picks` are l there, zero where another
    rank owns the column. Where l was reduced by its peak beforehand, `top` is 0.
    """
    sums = torch.cat((at_target, total, weighted, at_picks))
    _reduce(sums, dist.ReduceOp.SUM, group)
    at_target, total, weighted, at_picks = sums.split([len(total)] * 3 + [len(at_picks)])
    log_total = total.log() + top
    entropy = log_total - weighted / total
    if picks is not None:
        at_picks = at_picks - log_total[picks.rows]
    return at_target - log_total, entropy, at_picks, total, log_total


def _look_up(
    logits: torch.Tensor, rows: torch.Tensor, local: torch.Tensor
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """logits[rows, local], zero where another rank owns the column; and (column, owned) for the way back."""
    width = logits.shape[-1]
    owned = (local >= 0) & (local < width)
    column = local.clamp(0, max(width - 1, 0))
    found = logits[rows, column] * owned if width else logits.new_zeros(len(rows))
    return found, (column, owned)


def _reduce(tensor: torch.Tensor, op: dist.ReduceOp, group: dist.ProcessGroup | None) -> None:
    if group is not None and group.size() > 1:
        dist.all_reduce(tensor, op=op, group=group)


def vocab_log_probs(
    logits: torch.Tensor,
    targets: torch.Tensor,
    *,
    temperature: float = 1.0,
    vocab: int | None = None,
    group: dist.ProcessGroup | None = None,
    picks: Picks | None = None,
) -> Scores:
    """Log-probabilities of `targets` (and of `picks`) and entropies, all over the full vocabulary and differentiable.

    logits [tokens, columns of this rank], any float dtype; targets int64 [tokens], ids over the whole vocabulary;
    columns at or past `vocab` are padding and are left out of the distribution. With a `group`, rank r holds columns
    [r * columns, (r + 1) * columns) and every rank must call.
    """
    columns = logits.shape[-1]
    first = group.rank() * columns if group is not None else 0
    if logits.is_cuda:
        width = columns if vocab is None else min(max(vocab - first, 0), columns)
        log_probs, entropy, picked = _FusedVocabLogProb.apply(logits, targets, temperature, first, width, group, picks)
        return Scores(log_probs, entropy, None if picks is None else picked)
    if vocab is not None and first + columns > vocab:
        logits = logits[..., : max(vocab - first, 0)]
    log_probs, entropy, picked = _VocabLogProb.apply(logits, targets, temperature, first, group, picks)
    return Scores(log_probs, entropy, None if picks is None else picked)


def chunked_log_probs(
    hidden: torch.Tensor,
    targets: torch.Tensor,
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    *,
    chunk: int = -1,
    temperature: float = 1.0,
    vocab: int | None = None,
    group: dist.ProcessGroup | None = None,
    picks: Picks | None = None,
) -> Scores:
    """`vocab_log_probs` of `logits_of(hidden)` for hidden [tokens, width], `chunk` tokens at a time.

    With chunk > 0 the logits of at most `chunk` tokens exist at any moment, forward and backward (they are recomputed
    there); otherwise all are made at once and their softmax is kept for the backward pass.
    """

    def score(
        part: torch.Tensor, part_targets: torch.Tensor, part_picks: Picks | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        scores = vocab_log_probs(
            logits_of(part), part_targets, temperature=temperature, vocab=vocab, group=group, picks=part_picks
        )
        return scores.log_probs, scores.entropy, scores.picks

    if chunk <= 0 or hidden.shape[0] <= chunk:
        return Scores(*score(hidden, targets, picks))
    pieces = []
    parts = [None] * -(-len(targets) // chunk) if picks is None else picks.chunks(chunk, len(targets))
    for part, part_targets, part_picks in zip(hidden.split(chunk), targets.split(chunk), parts, strict=True):
        if torch.is_grad_enabled():
            pieces.append(
                checkpoint(score, part, part_targets, part_picks, use_reentrant=False, preserve_rng_state=False)
            )
        else:
            pieces.append(score(part, part_targets, part_picks))
    log_probs, entropy, picked = zip(*pieces, strict=True)
    return Scores(torch.cat(log_probs), torch.cat(entropy), None if picks is None else torch.cat(picked))
