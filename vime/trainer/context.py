"""Context parallelism: the tokens of each packed row are cut over ranks, and queries meet the keys of all of them.

Every rank keeps the whole layout of a micro-batch and computes the layers for its own tokens only. Keys and values are
gathered for attention (arXiv 2407.21783, 3.3.2): it is exact, a row costs one collective a layer, and with grouped queries
they are a small part of the activations. Log-probabilities are gathered too, so losses see whole sequences and know nothing
of the cut: each rank computes the same loss and sends the gradient of its own tokens back.

Zigzag: a sequence is cut into 2 x ranks chunks and rank r holds chunks r and 2 x ranks - 1 - r, which balances the causal
triangle. Contiguous (--allgather-cp): the row is cut into as many runs as there are ranks, which balances tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F


@dataclass(frozen=True)
class Segment:
    """A run of one sequence on one rank: tokens [first, last) of the sequence that begins at `start` in the packed row."""

    start: int
    first: int
    last: int


def segments(lengths: Sequence[int], ranks: int, rank: int, zigzag: bool) -> list[Segment]:
    """What `rank` holds of sequences of `lengths` lying one after another, in packed order. Ranks together hold each token once."""
    found: list[Segment] = []
    start = 0
    total = sum(lengths)
    for length in lengths:
        if zigzag:
            chunk = -(-length // (2 * ranks))
            runs = [(c * chunk, min((c + 1) * chunk, length)) for c in (rank, 2 * ranks - 1 - rank)]
        else:
            runs = [(total * rank // ranks - start, total * (rank + 1) // ranks - start)]
        for first, last in runs:
            first, last = max(first, 0), min(last, length)
            if first < last:
                found.append(Segment(start, first, last))
        start += length
    return found


@dataclass(frozen=True)
class ContextCut:
    """How one packed row is cut, from the point of view of one rank of `group`.

    held int64 [own tokens]: packed positions of this rank's tokens. restore int64 [tokens]: where each packed token is among
    the rows that ranks gather, each padded to `width`. `own` are this rank's segments, in the order of `held`.
    """

    group: dist.ProcessGroup
    own: tuple[Segment, ...]
    held: torch.Tensor
    restore: torch.Tensor
    width: int

    @classmethod
    def of(cls, lengths: Sequence[int], group: dist.ProcessGroup, zigzag: bool, device: torch.device) -> ContextCut:
        everyone = [segments(lengths, group.size(), rank, zigzag) for rank in range(group.size())]
        positions = [_positions(part) for part in everyone]
        width = max(len(p) for p in positions)
        restore = torch.empty(sum(lengths), dtype=torch.int64)
        for rank, held in enumerate(positions):
            restore[held] = rank * width + torch.arange(len(held))
        rank = group.rank()
        return cls(group, tuple(everyone[rank]), positions[rank].to(device), restore.to(device), width)

    def gather(self, own: torch.Tensor) -> torch.Tensor:
        """[own tokens, ...] of each rank -> [tokens, ...] in packed order; gradients of all ranks come back summed."""
        return _Gather.apply(own, self)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, cut: ContextCut) -> torch.Tensor:
        ctx.cut, ctx.tokens = cut, own.shape[0]
        padded = F.pad(own, (0, 0) * (own.dim() - 1) + (0, cut.width - own.shape[0])).contiguous()
        every = own.new_empty(cut.group.size() * cut.width, *own.shape[1:])
        dist.all_gather_into_tensor(every, padded, group=cut.group)
        return every.index_select(0, cut.restore)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        cut = ctx.cut
        # Half precision would round once a rank.
        total = grad.float()
        dist.all_reduce(total, group=cut.group)
        return total.index_select(0, cut.held).to(grad.dtype), None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, own: torch.Tensor, places: torch.Tensor, total: int, group: dist.ProcessGroup
    ) -> torch.Tensor:
        ctx.places = places
        every = own.new_zeros(total).index_copy(0, places, own)
        dist.all_reduce(every, group=group)
        return every

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:  # type: ignore[override]
        return grad.index_select(0, ctx.places), None, None, None


def combine(own: torch.Tensor, places: torch.Tensor, total: int, group: dist.ProcessGroup) -> torch.Tensor:
    """Values fp32 [own] at `places` int64 [own] of [total], from every rank of `group` -> [total].

    For a loss that all ranks compute alike: a rank's gradient is that of its own values, not summed over ranks.
    """
    return _Combine.apply(own, places, total, group)


def attend_cut(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cut: ContextCut, scale: float | None = None
) -> torch.Tensor:
    """Causal attention of own queries [own tokens, heads, dim] over all keys and values [tokens, groups, dim], on a CPU."""
    repeat = q.shape[1] // k.shape[1]
    outputs, at = [], 0
    for run in cut.own:
        count = run.last - run.first
        query = q[at : at + count].transpose(0, 1)[None]
        key, value = (
            x[run.start : run.start + run.last].transpose(0, 1)[None].repeat_interleave(repeat, 1) for x in (k, v)
        )
        seen = torch.ones(count, run.last, dtype=torch.bool, device=q.device).tril(run.first)
        outputs.append(
            F.scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=scale)[0].transpose(0, 1)
        )
        at += count
    # A rank without tokens still owes its part to the others' keys: nothing, through a zero of the right shape.
    return torch.cat(outputs) if outputs else q[..., : v.shape[-1]] + (k.sum() + v.sum()) * 0


def attend_cut_varlen(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cut: ContextCut, scale: float | None = None
) -> torch.Tensor:
    """The same on a GPU, in one call of a variable-length kernel whose causal mask is aligned to the last query and key."""
    from vime.trainer.attention import varlen_kernel

    take = torch.cat([torch.arange(run.start, run.start + run.last, device=q.device) for run in cut.own])
    counts = torch.tensor([0, *(run.last - run.first for run in cut.own)], device=q.device)
    seen = torch.tensor([0, *(run.last for run in cut.own)], device=q.device)
    return varlen_kernel(
        q,
        k.index_select(0, take),
        v.index_select(0, take),
        counts.cumsum(0).to(torch.int32),
        seen.cumsum(0).to(torch.int32),
        int(counts.max()),
        int(seen.max()),
        scale,
    )


def _positions(held: Sequence[Segment]) -> torch.Tensor:
    runs = [torch.arange(run.start + run.first, run.start + run.last) for run in held]
    return torch.cat(runs) if runs else torch.zeros(0, dtype=torch.int64)
