"""Log-probabilities and entropy of tokens under a vocabulary that is cut over tensor-parallel ranks.

All in fp32, whatever the logits are in, after division by the rollout temperature:
    log p(y) = l_y / T - log sum_v exp(l_v / T)          H = log Z - sum_v p_v l_v / T
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint


class _VocabLogProb(torch.autograd.Function):
    """Gradients: d log p(y) / d l_v = (1[v = y] - p_v) / T;  d H / d l_v = -p_v (log p_v + H) / T."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        logits: torch.Tensor,
        targets: torch.Tensor,
        temperature: float,
        first: int,
        group: dist.ProcessGroup | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        scaled = logits.float()
        scaled = scaled.clone() if scaled.data_ptr() == logits.data_ptr() else scaled
        if temperature != 1.0:
            scaled.div_(temperature)
        width = scaled.shape[-1]
        # A rank whose whole block is padding owns no column.
        peak = scaled.amax(-1) if width else scaled.new_full(scaled.shape[:1], float("-inf"))
        _reduce(peak, dist.ReduceOp.MAX, group)
        scaled.sub_(peak[:, None])
        local = targets - first
        owned = (local >= 0) & (local < width)
        local = local.clamp(0, max(width - 1, 0))
        at_target = torch.zeros_like(peak)
        if width:
            at_target = scaled.gather(-1, local[:, None])[:, 0] * owned
        probabilities = scaled.exp()
        total = probabilities.sum(-1)
        weighted = (probabilities * scaled).sum(-1)
        sums = torch.stack((at_target, total, weighted))
        _reduce(sums, dist.ReduceOp.SUM, group)
        at_target, total, weighted = sums
        log_total = total.log()
        probabilities.div_(total[:, None])
        entropy = log_total - weighted / total
        ctx.save_for_backward(probabilities, local, owned, entropy)
        ctx.temperature, ctx.dtype = temperature, logits.dtype  # type: ignore[attr-defined]
        ctx.set_materialize_grads(False)
        return at_target - log_total, entropy

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: torch.autograd.function.FunctionCtx, grad_log_prob: torch.Tensor | None, grad_entropy: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, None, None, None, None]:
        probabilities, local, owned, entropy = ctx.saved_tensors  # type: ignore[attr-defined]
        if grad_log_prob is None and grad_entropy is None:
            return None, None, None, None, None
        grad: torch.Tensor | None = None
        if grad_log_prob is not None:
            grad = probabilities * -grad_log_prob[:, None]
            if grad.shape[-1]:
                grad.scatter_add_(-1, local[:, None], (grad_log_prob * owned)[:, None])
        if grad_entropy is not None:
            # xlogy: 0 log 0 = 0 for probabilities that underflow.
            entropy_part = torch.xlogy(probabilities, probabilities).add_(probabilities * entropy[:, None])
            entropy_part.mul_(-grad_entropy[:, None])
            grad = entropy_part if grad is None else grad.add_(entropy_part)
        assert grad is not None
        return grad.div_(ctx.temperature).to(ctx.dtype), None, None, None, None  # type: ignore[attr-defined]


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
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of `targets` and entropies, both fp32 [tokens] and differentiable.

    logits [tokens, columns of this rank], any float dtype; targets int64 [tokens], ids over the whole vocabulary;
    columns at or past `vocab` are padding and are left out of the distribution. With a `group`, rank r holds columns
    [r * columns, (r + 1) * columns) and every rank must call.
    """
    columns = logits.shape[-1]
    first = group.rank() * columns if group is not None else 0
    if vocab is not None and first + columns > vocab:
        logits = logits[..., : max(vocab - first, 0)]
    return _VocabLogProb.apply(logits, targets, temperature, first, group)


def chunked_log_probs(
    hidden: torch.Tensor,
    targets: torch.Tensor,
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    *,
    chunk: int = -1,
    temperature: float = 1.0,
    vocab: int | None = None,
    group: dist.ProcessGroup | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`vocab_log_probs` of `logits_of(hidden)` for hidden [tokens, width], `chunk` tokens at a time.

    With chunk > 0 the logits of at most `chunk` tokens exist at any moment, forward and backward (they are recomputed
    there); otherwise all are made at once and their softmax is kept for the backward pass.
    """

    def score(part: torch.Tensor, part_targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return vocab_log_probs(logits_of(part), part_targets, temperature=temperature, vocab=vocab, group=group)

    if chunk <= 0 or hidden.shape[0] <= chunk:
        return score(hidden, targets)
    pieces = []
    for part, part_targets in zip(hidden.split(chunk), targets.split(chunk), strict=True):
        if torch.is_grad_enabled():
            pieces.append(checkpoint(score, part, part_targets, use_reentrant=False, preserve_rng_state=False))
        else:
            pieces.append(score(part, part_targets))
    return torch.cat([p[0] for p in pieces]), torch.cat([p[1] for p in pieces])
