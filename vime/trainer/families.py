"""Causal attention over short sequences on a CPU, written out as matrix products with a mask.

A family is all sequences of a packed row that begin with the same tokens, which lie in the row once (see `prefix`); a sequence that shares
nothing is a family of its own. Each token of a family is a query and a key once, whoever shares it, and the mask says what it sees. torch's
own kernel would see every sequence with its prompt: of the toy's groups of eight, forth and back, that took three times as long, most of it
for adding up the gradients of shared tokens, of which there are none here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vime.trainer.prefix import Ints, Layout

#: Tokens of the longest family. All its scores exist at once, so longer ones are left to torch's kernel, which makes them piece by piece.
LONGEST = 128
# A block takes in families down to this share of its longest: at most that much padding, few calls.
_SHORTEST_IN_BLOCK = 0.75
_ALWAYS_TOGETHER = 8  # tokens; for short families a call costs more than padding
_SHARED, _PADDING = -1, -2


@dataclass(frozen=True)
class Block:
    """Families padded to one length: `take` int64 [families, length] are their places in the row, `mask` fp32 [families, length, length]
    is added to scores [query, key]."""

    take: torch.Tensor
    mask: torch.Tensor


@dataclass(frozen=True)
class Rows:
    """`Block` for a number of heads: rows of [tokens * heads, width] that make up [families * heads, length], and its mask."""

    queries: torch.Tensor
    keys: torch.Tensor
    mask: torch.Tensor


@dataclass(frozen=True)
class Families:
    """The blocks, and where in them each token of the row is: in those before and the families before its own (`start`), among the `length` places
    of its family at `column`; int64 [tokens] each."""

    blocks: tuple[Block, ...]
    start: torch.Tensor
    column: torch.Tensor
    length: torch.Tensor
    _known: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def rows(self, heads: int, groups: int, dtype: torch.dtype) -> list[Rows]:
        """Of each block, for `heads` of queries and `groups` of keys; made once."""
        if (heads, groups, dtype) not in self._known:
            head = torch.arange(heads)[:, None]
            self._known[heads, groups, dtype] = [
                Rows(
                    (block.take[:, None] * heads + head).flatten(),
                    (block.take[:, None] * groups + head // (heads // groups)).flatten(),
                    block.mask.to(dtype).repeat_interleave(heads, 0),
                )
                for block in self.blocks
            ]
        found: list[Rows] = self._known[heads, groups, dtype]
        return found

    def back(self, heads: int) -> torch.Tensor:
        """int64 [tokens * heads]: where in the blocks' rows, one after another, each of [tokens, heads] is; made once."""
        if heads not in self._known:
            head = torch.arange(heads)
            self._known[heads] = ((self.start * heads + self.column)[:, None] + self.length[:, None] * head).flatten()
        found: torch.Tensor = self._known[heads]
        return found


def find(layout: Layout) -> Families | None:
    """The families of a packed row; None when one is longer than `LONGEST`."""
    places = len(layout.keep)
    starts = np.cumsum(layout.lengths) - layout.lengths
    # Sequences that share anything share their first token.
    _, family_of = np.unique(layout.expand[starts], return_inverse=True)
    owner = np.repeat(np.arange(len(starts)), layout.lengths)[layout.keep]
    family = family_of[owner]
    sizes = np.bincount(family)
    if sizes.max() > LONGEST:
        return None
    owner = np.where(np.bincount(layout.expand, minlength=places) > 1, _SHARED, owner)
    by_family = np.argsort(family, kind="stable")
    ends = np.cumsum(sizes)
    column = np.empty(places, np.int64)
    column[by_family] = np.arange(places) - np.repeat(ends - sizes, sizes)
    start, length = np.empty_like(sizes), np.empty_like(sizes)
    blocks, base = [], 0
    for members in _alike(sizes):
        longest = int(sizes[members[0]])
        within = np.arange(longest)
        places_of = by_family[(ends - sizes)[members, None] + np.minimum(within, sizes[members, None] - 1)]
        owners = np.where(within < sizes[members, None], owner[places_of], _PADDING)
        blocks.append(Block(torch.from_numpy(places_of), torch.from_numpy(_mask(owners))))
        start[members], length[members] = base + np.arange(len(members)) * longest, longest
        base += len(members) * longest
    return Families(tuple(blocks), *(torch.from_numpy(x) for x in (start[family], column, length[family])))


def _alike(sizes: Ints) -> list[Ints]:
    """Families by size, the longest first, in runs of like sizes."""
    order = np.argsort(-sizes, kind="stable")
    runs, first = [], 0
    while first < len(order):
        length = sizes[order[first]]
        floor = min(length * _SHORTEST_IN_BLOCK, length - _ALWAYS_TOGETHER)
        last = first + int((sizes[order[first:]] >= floor).sum())
        runs.append(order[first:last])
        first = last
    return runs


def _mask(owners: Ints) -> npt.NDArray[np.float32]:
    """[families, length] -> [families, length, length]: 0 where the query sees the key, else -inf. What belongs to one sequence is seen by it alone;
    padding sees padding, so that nothing of it comes into a gradient."""
    query, key = owners[:, :, None], owners[:, None, :]
    seen = (query == key) | ((key == _SHARED) & (query != _PADDING))
    return np.where(np.tril(seen), np.float32(0), np.float32(-np.inf))


class _Attend(torch.autograd.Function):
    """With P = softmax(s Q K' + mask), O = P V:  dV = P' dO,  dS = P (dO V' - rowsum(dO V' P)),  dQ = s dS K,  dK = s dS' Q."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, families: Families, scale: float
    ) -> torch.Tensor:
        heads, groups = q.shape[1], k.shape[1]
        rows = families.rows(heads, groups, q.dtype)
        outputs, saved = [], []
        for block in rows:
            queries = _gather(q, block.queries, block.mask)
            keys, values = (_gather(x, block.keys, block.mask) for x in (k, v))
            weights = torch.baddbmm(block.mask, queries, keys.transpose(1, 2), alpha=scale).softmax(-1)
            outputs.append(torch.bmm(weights, values))
            saved += [queries, keys, values, weights]
        ctx.save_for_backward(*saved)
        ctx.families, ctx.scale, ctx.heads, ctx.groups = families, scale, heads, groups
        return _scatter(outputs, families, heads, heads)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        heads, groups, scale, saved = ctx.heads, ctx.groups, ctx.scale, ctx.saved_tensors
        by_query, by_key, by_value = [], [], []
        for number, block in enumerate(ctx.families.rows(heads, groups, grad.dtype)):
            queries, keys, values, weights = saved[4 * number : 4 * number + 4]
            own = _gather(grad, block.queries, block.mask)
            by_value.append(torch.bmm(weights.transpose(1, 2), own))
            by_weight = torch.bmm(own, values.transpose(1, 2))
            by_score = torch._softmax_backward_data(by_weight, weights, -1, weights.dtype).mul_(scale)
            by_query.append(torch.bmm(by_score, keys))
            by_key.append(torch.bmm(by_score.transpose(1, 2), queries))
        return (
            _scatter(by_query, ctx.families, heads, heads),
            *(_scatter(parts, ctx.families, heads, groups) for parts in (by_key, by_value)),
            None,
            None,
        )


def _gather(x: torch.Tensor, rows: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """[tokens, heads, width] -> [families * heads, length, width] of one block."""
    width = x.shape[-1]
    return x.reshape(-1, width).index_select(0, rows).view(len(mask), -1, width)


def _scatter(parts: list[torch.Tensor], families: Families, heads: int, groups: int) -> torch.Tensor:
    """[families * heads, length, width] of all blocks -> [tokens, groups, width], summed over the heads of a group."""
    width = parts[0].shape[-1]
    if groups < heads:
        parts = [x.view(-1, heads // groups, *x.shape[1:]).sum(1) for x in parts]
    flat = torch.cat([x.view(-1, width) for x in parts]) if len(parts) > 1 else parts[0].view(-1, width)
    return flat.index_select(0, families.back(groups)).view(-1, groups, width)


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, families: Families, scale: float | None = None
) -> torch.Tensor:
    """Causal attention within each sequence: q [tokens, heads, width], k and v [tokens, groups, their width] -> [tokens, heads, width of v].

    `scale` multiplies q k, 1 / sqrt(width) when None."""
    return _Attend.apply(q, k, v, families, q.shape[-1] ** -0.5 if scale is None else scale)
