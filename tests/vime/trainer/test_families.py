"""Short sequences that begin alike are attended to as families: what comes out, and every gradient, is that of each sequence by itself."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vime.trainer import families, prefix
from vime.trainer.attention import Rotary, attend_on_cpu, pack

Pairs = list[tuple[list[int], list[int]]]


def alone(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: prefix.Layout, scale: float) -> torch.Tensor:
    """The plain formula, sequence by sequence, of what `layout` puts in the row."""
    repeat, found = q.shape[1] // k.shape[1], []
    for places in torch.from_numpy(layout.expand).split(layout.lengths.tolist()):
        query, key, value = q[places], *(x[places].repeat_interleave(repeat, 1) for x in (k, v))
        scores = torch.einsum("ihd,jhd->hij", query, key) * scale
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        found.append(torch.einsum("hij,jhd->ihd", scores.masked_fill(future, float("-inf")).softmax(-1), value))
    return torch.cat(found)[torch.from_numpy(layout.keep)]


@settings(max_examples=100, deadline=None)
@given(
    pairs=st.lists(
        st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=8), st.lists(st.integers(0, 3), max_size=30)),
        min_size=1,
        max_size=16,
    ),
    repeat=st.sampled_from([1, 2]),
    scale=st.sampled_from([None, 0.7]),
    multiple=st.sampled_from([1, 8]),
    longest=st.sampled_from([0, 1_000_000]),
)
def test_a_family_is_its_sequences(pairs: Pairs, repeat: int, scale: float | None, multiple: int, longest: int) -> None:
    layout = prefix.lay_out([a + b for a, b in pairs], [len(a) for a, _ in pairs])
    layout = prefix.padded(layout, multiple)
    with mock.patch.object(families, "LONGEST", longest):
        packed = pack(
            layout.lengths.tolist(), Rotary(torch.ones(2), 1.0), torch.float64, torch.device("cpu"), layout=layout
        )
    assert (packed.families is None) == (longest == 0)
    generator, tokens = torch.Generator().manual_seed(len(pairs)), len(layout.tokens)
    shapes = (tokens, 2 * repeat, 4), (tokens, 2, 4), (tokens, 2, 6 if longest else 4)
    inputs = [torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in shapes]
    own, expected = attend_on_cpu(*inputs, packed, scale), alone(*inputs, layout, 0.5 if scale is None else scale)
    torch.testing.assert_close(own, expected, rtol=1e-9, atol=1e-9)
    weights = torch.randn(own.shape, generator=generator, dtype=torch.float64)
    for mine, theirs in zip(
        torch.autograd.grad((own * weights).sum(), inputs),
        torch.autograd.grad((expected * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


def test_little_padding_and_few_blocks() -> None:
    layout = prefix.apart([n for n in range(5, 21) for _ in range(16)])
    found = families.find(layout)
    assert found is not None
    assert len(found.blocks) <= 3
    assert sum(block.take.numel() for block in found.blocks) <= 1.5 * len(layout.keep)
    with mock.patch.object(families, "LONGEST", 0):
        buckets = pack(layout.lengths.tolist(), Rotary(torch.ones(4), 1.0), torch.float32, torch.device("cpu")).buckets
    assert len(buckets) <= 3
    assert sum(bucket.rows * bucket.length for bucket in buckets) <= 1.5 * len(layout.keep)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_only_short_ones_in_full_precision_are_written_out(dtype: torch.dtype) -> None:
    for length in (families.LONGEST, families.LONGEST + 1):
        packed = pack([3, length], Rotary(torch.ones(2), 1.0), dtype, torch.device("cpu"))
        written_out = dtype == torch.float32 and length == families.LONGEST
        assert (packed.families is not None, bool(packed.buckets)) == (written_out, not written_out)
