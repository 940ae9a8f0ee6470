"""Causal self-attention over packed sequences, with the rotary embedding, on a CPU and on a GPU.

Megatron's layers hand over queries, keys and values before rotation: the model is built without its position embedding,
because Megatron rotates packed sequences one by one in Python, in each layer. Here cosines and sines are made once a
micro-batch and shared by all layers.

On a CPU short sequences are written out as matrix products (see `families`), longer ones of like length are padded into one batched call; a
right-padded causal row never looks at padding, so no mask is needed. On a GPU the packed tokens go to a variable-length kernel as they are.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.transformer import MegatronModule, TransformerConfig

from vime.convert.shape import ModelShape
from vime.trainer import families
from vime.trainer.context import ContextCut, attend_cut, attend_cut_varlen
from vime.trainer.families import Families
from vime.trainer.kernels import rotate
from vime.trainer.prefix import Layout, apart

# A bucket takes in shorter sequences down to this share of its longest: at most that much padding, few calls.
_SHORTEST_IN_BUCKET = 0.75
_ALWAYS_TOGETHER = 8  # tokens; for short sequences a call costs more than padding


@dataclass(frozen=True)
class Bucket:
    """`rows` sequences padded to `length`: `take` [rows * length] picks packed tokens, the last one repeated as padding."""

    take: torch.Tensor
    rows: int
    length: int


@dataclass(frozen=True)
class PackedSequences:
    """Where sequences begin in a packed row of tokens, and what attention needs of that, computed once a micro-batch.

    cu_seqlens int32 [sequences + 1]; positions int64 [tokens]; cos, sin [tokens, 1, head_dim / 2] in the model's dtype.
    `restore` int64 [tokens] finds each packed token in the concatenated buckets (None: they are in order, unpadded).
    With a `cut`, tokens are those of this rank; cu_seqlens and `longest` still describe whole sequences. So they do where
    sequences share tokens of the row: `expand` and `keep` (see `prefix.Layout`) lead to the sequences and back, on a GPU;
    on a CPU the buckets and `restore` do, or `families`, where all of them are short.
    cos and sin may be of the first part of a head only; `interleaved`: neighbours are rotated together, not halves.
    """

    cu_seqlens: torch.Tensor
    longest: int
    positions: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    buckets: tuple[Bucket, ...] = ()
    restore: torch.Tensor | None = None
    cut: ContextCut | None = None
    interleaved: bool = False
    expand: torch.Tensor | None = None
    keep: torch.Tensor | None = None
    families: Families | None = None
    # Megatron reads this: anything but "thd" leaves the [tokens, 1, heads, dim] layout and the rotation to us.
    qkv_format: str = field(default="packed", init=False)


class Rotary:
    """Inverse frequencies of a model [rotated / 2] fp32, and the factor that cosines and sines are multiplied by."""

    def __init__(self, inverse: torch.Tensor, scale: float, interleaved: bool = False) -> None:
        self.inverse, self.scale, self.interleaved = inverse, scale, interleaved

    @classmethod
    def from_hf(cls, config: Any, shape: ModelShape, device: torch.device) -> Rotary:
        """The frequencies that transformers uses for this configuration, so that both agree for every scaling."""
        if shape.rope_type == "default":
            dim = shape.rotated
            inverse = 1.0 / (shape.rope_theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))
            return cls(inverse.to(device), 1.0, shape.interleaved)
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        inverse, scale = ROPE_INIT_FUNCTIONS[shape.rope_type](config, device)
        return cls(inverse, scale, shape.interleaved)

    def tables(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin [tokens, 1, head_dim / 2] for int positions [tokens]; computed in fp32."""
        angles = (positions[:, None].float() * self.inverse)[:, None]
        return (angles.cos() * self.scale).to(dtype), (angles.sin() * self.scale).to(dtype)


def pack(
    lengths: Sequence[int],
    rotary: Rotary,
    dtype: torch.dtype,
    device: torch.device,
    cut: ContextCut | None = None,
    layout: Layout | None = None,
) -> PackedSequences:
    """Describe sequences of `lengths` (each >= 1) lying one after another in a packed row, or one rank's `cut` of it, or
    as `layout` says, where some of them share tokens."""
    sizes = torch.tensor(lengths, dtype=torch.int64)
    ends = sizes.cumsum(0)
    starts = ends - sizes
    positions = torch.arange(int(ends[-1])) - starts.repeat_interleave(sizes)
    cu_seqlens = F.pad(ends, (1, 0)).to(torch.int32)
    written_out: Families | None = None
    buckets: tuple[Bucket, ...] = ()
    restore: torch.Tensor | None = None
    if device.type == "cpu" and cut is None:
        if dtype in (torch.float32, torch.float64):  # others would round the weights of attention
            written_out = families.find(layout or apart(lengths))
        if written_out is None:
            buckets, restore = _buckets(sizes, starts, positions)
    expand = keep = None
    if layout is not None and layout.shares:
        expand, keep = torch.from_numpy(layout.expand), torch.from_numpy(layout.keep)
        positions = positions[keep]
        if buckets:
            restore = keep if restore is None else restore[keep]
            buckets = tuple(Bucket(expand[bucket.take], bucket.rows, bucket.length) for bucket in buckets)
        expand, keep = expand.to(device), keep.to(device)
    positions = positions.to(device)
    if cut is not None:
        positions = positions.index_select(0, cut.held)
    cos, sin = rotary.tables(positions, dtype)
    return PackedSequences(
        cu_seqlens=cu_seqlens.to(device),
        longest=int(sizes.max()),
        positions=positions,
        cos=cos,
        sin=sin,
        buckets=buckets,
        restore=restore,
        cut=cut,
        interleaved=rotary.interleaved,
        expand=expand,
        keep=keep,
        families=written_out,
    )


def _buckets(
    sizes: torch.Tensor, starts: torch.Tensor, positions: torch.Tensor
) -> tuple[tuple[Bucket, ...], torch.Tensor | None]:
    if bool((sizes == sizes[0]).all()):
        length = int(sizes[0])
        return (Bucket(torch.arange(len(positions)), len(sizes), length),), None
    order = torch.argsort(sizes, descending=True, stable=True)
    ordered = sizes[order].tolist()
    buckets: list[Bucket] = []
    padded_start = torch.empty_like(sizes)
    first = base = 0
    while first < len(ordered):
        length = ordered[first]
        floor = min(length * _SHORTEST_IN_BUCKET, length - _ALWAYS_TOGETHER)
        last = first
        while last < len(ordered) and ordered[last] >= floor:
            last += 1
        members = order[first:last]
        within = torch.arange(length).expand(len(members), -1)
        take = starts[members, None] + torch.minimum(within, sizes[members, None] - 1)
        buckets.append(Bucket(take.flatten(), len(members), length))
        padded_start[members] = base + torch.arange(len(members)) * length
        base += len(members) * length
        first = last
    return tuple(buckets), padded_start.repeat_interleave(sizes) + positions


def attend_on_cpu(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, packed: PackedSequences, scale: float | None = None
) -> torch.Tensor:
    """Causal attention within each sequence: q [tokens, heads, dim], k and v [tokens, groups, dim].

    `scale` multiplies q k, 1 / sqrt(dim) when None."""
    if packed.families is not None:
        return families.attend(q, k, v, packed.families, scale)
    return _attend_buckets(q, k, v, packed, scale)


def _attend_buckets(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, packed: PackedSequences, scale: float | None
) -> torch.Tensor:
    repeat = q.shape[1] // k.shape[1]
    outputs = []
    for bucket in packed.buckets:
        padded = []
        for x in (q, k, v):
            if packed.restore is not None:
                x = x.index_select(0, bucket.take)
            padded.append(x.view(bucket.rows, bucket.length, *x.shape[1:]).transpose(1, 2))
        query, key, value = padded
        if repeat > 1:
            key, value = (x.repeat_interleave(repeat, 1) for x in (key, value))
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
        outputs.append(out.transpose(1, 2).reshape(bucket.rows * bucket.length, q.shape[1], -1))
    out = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return out if packed.restore is None else out.index_select(0, packed.restore)


def attend_varlen(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, packed: PackedSequences, scale: float | None = None
) -> torch.Tensor:
    """The same on a GPU."""
    cu, longest = packed.cu_seqlens, packed.longest
    if packed.expand is None or packed.keep is None:
        return varlen_kernel(q, k, v, cu, cu, longest, longest, scale)
    q, k, v = (x.index_select(0, packed.expand) for x in (q, k, v))
    return varlen_kernel(q, k, v, cu, cu, longest, longest, scale).index_select(0, packed.keep)


def varlen_kernel(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_q: torch.Tensor,
    cu_k: torch.Tensor,
    longest_q: int,
    longest_k: int,
    scale: float | None = None,
) -> torch.Tensor:
    """FlashAttention 3 where installed, else torch's variable-length kernel: q [queries, heads, dim], k and v
    [keys, groups, dim], causal with the last query of a sequence at its last key."""
    width = v.shape[-1]
    if width != q.shape[-1]:  # the kernels take one width
        v = F.pad(v, (0, q.shape[-1] - width))
        return varlen_kernel(q, k, v, cu_q, cu_k, longest_q, longest_k, scale)[..., :width]
    flash = _flash_attention()
    if flash is not None:
        out = flash(q, k, v, cu_q, cu_k, longest_q, longest_k, softmax_scale=scale, causal=True)
        return out[0] if isinstance(out, tuple) else out
    from torch.nn.attention.varlen import varlen_attn

    options: dict[str, Any] = {} if scale is None else {"scale": scale}
    if q.shape[1] != k.shape[1]:
        if _groups_heads(varlen_attn):
            options["enable_gqa"] = True
        else:
            k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    return varlen_attn(q, k, v, cu_q, cu_k, longest_q, longest_k, window_size=(-1, 0), **options)


@functools.cache
def _groups_heads(kernel: Callable[..., Any]) -> bool:
    """Whether this torch's kernel takes fewer key heads than query heads: torch 2.11's does not."""
    return "enable_gqa" in inspect.signature(kernel).parameters


@functools.cache
def _flash_attention() -> Callable[..., Any] | None:
    try:
        return importlib.import_module("flash_attn_interface").flash_attn_varlen_func
    except ImportError:
        return None


class PackedAttention(MegatronModule):
    """Megatron's core attention for this trainer: rotation, then causal attention over packed sequences."""

    rotates = True

    def __init__(self, config: TransformerConfig, layer_number: int, **_: Any) -> None:
        super().__init__(config=config)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: None = None,
        *,
        packed_seq_params: PackedSequences,
        **_: Any,
    ) -> torch.Tensor:
        """[tokens, 1, heads or groups, dim] each -> [tokens, 1, heads * dim]."""
        q, k, v, packed = query.squeeze(1), key.squeeze(1), value.squeeze(1), packed_seq_params
        if self.rotates:
            q, k = (rotate(x, packed.cos, packed.sin, packed.interleaved) for x in (q, k))
        on_cpu, cut, scale = q.device.type == "cpu", packed.cut, self.config.softmax_scale
        if cut is not None:
            k, v = cut.gather(torch.cat((k, v), -1)).split([k.shape[-1], v.shape[-1]], -1)
            out = (attend_cut if on_cpu else attend_cut_varlen)(q, k, v, cut, scale)
        else:
            out = (attend_on_cpu if on_cpu else attend_varlen)(q, k, v, packed, scale)
        return out.reshape(q.shape[0], 1, -1)
