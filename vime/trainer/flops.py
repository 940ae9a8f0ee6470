"""Floating-point work of a decoder, from its shape. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from vime.convert.shape import ModelShape


def training_flops(shape: ModelShape, lengths: Sequence[int]) -> float:
    """Of one forward and backward pass over sequences of `lengths` tokens: three times the forward pass.

    A multiplication of matrices counts 2 operations a weight and token, causal attention half of its square (the usual count, as in
    arXiv 2001.08361 section 2.1 and arXiv 2205.05198 appendix). Norms, embeddings' look-up and activations are left out.
    """
    tokens = float(sum(lengths))
    pairs = sum(length * (length + 1) / 2 for length in lengths)
    width, values = _head_widths(shape)
    matrices = 2.0 * _weights_per_token(shape) * tokens
    attention = 2.0 * shape.layers * shape.heads * (width + values) * pairs
    return 3.0 * (matrices + attention)


def _head_widths(shape: ModelShape) -> tuple[int, int]:
    return (shape.latent.head, shape.latent.value) if shape.latent else (shape.head_dim, shape.head_dim)


def _weights_per_token(shape: ModelShape) -> float:
    """Weights of the matrices that one token meets."""
    if shape.latent is None:
        attention = shape.hidden * shape.head_dim * (2 * shape.heads + 2 * shape.groups)
    else:
        part = shape.latent
        queries = (
            part.query_rank * (shape.hidden + shape.heads * part.head)
            if part.query_rank
            else shape.hidden * shape.heads * part.head
        )
        keys = shape.hidden * (part.kv_rank + part.rotated)
        values = part.kv_rank * shape.heads * (part.plain + part.value) + shape.heads * part.value * shape.hidden
        attention = queries + keys + values
    total = float(shape.layers * attention + shape.vocab * shape.hidden)
    for layer in range(shape.layers):
        if shape.experts is None or not shape.has_experts(layer):
            total += 3 * shape.hidden * shape.ffn
        else:
            experts = shape.experts
            total += 3 * shape.hidden * (experts.top * experts.ffn + experts.shared_ffn) + shape.hidden * experts.count
    return total
