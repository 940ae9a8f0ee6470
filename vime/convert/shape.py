"""Sizes and switches of a decoder, in Megatron's terms: what a Hugging Face configuration says that weights and layers need."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (arXiv 2405.04434, 2.1): ranks of the compressed queries (None: not compressed) and
    keys/values, widths of a head's part without position, its rotated part and its value."""

    query_rank: int | None
    kv_rank: int
    plain: int
    rotated: int
    value: int

    @property
    def head(self) -> int:
        """Width of a query or key."""
        return self.plain + self.rotated


@dataclass(frozen=True)
class Experts:
    """A mixture of experts: `top` of `count` a token, each `ffn` wide, beside a shared one of `shared_ffn` (0: none).

    `score` is "softmax" or "sigmoid"; `normalised` makes the chosen weights sum to 1, then times `scale`. `bias`: a correction
    that counts for the choice only (arXiv 2408.15664). Experts lie in `groups`, of which a token may use `top_groups`.
    `dense` are the layers without experts.
    """

    count: int
    top: int
    ffn: int
    shared_ffn: int = 0
    score: str = "softmax"
    normalised: bool = True
    scale: float | None = None
    bias: bool = False
    groups: int | None = None
    top_groups: int | None = None
    dense: frozenset[int] = frozenset()


@dataclass(frozen=True)
class ModelShape:
    """Sizes and switches of a decoder. `groups` are key/value heads; `rotated` is how much of a head is rotated, `interleaved`
    whether neighbours are pairs (else the halves are). `post_norms`: norms after attention and feed-forward too.
    `attention_scale` multiplies query times key where it is not 1 / sqrt(width)."""

    model_type: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    groups: int
    head_dim: int
    vocab: int
    norm_eps: float
    tied: bool
    max_positions: int
    rope_theta: float
    rope_type: str
    rotated: int
    interleaved: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    attention_scale: float | None = None
    latent: Latent | None = None
    experts: Experts | None = None

    def padded_vocab(self, tensor_ranks: int) -> int:
        """Rows of the embedding over all ranks. The rows past `vocab` are never scored and never exported."""
        return -(-self.vocab // tensor_ranks) * tensor_ranks

    def has_experts(self, layer: int) -> bool:
        return self.experts is not None and layer not in self.experts.dense
