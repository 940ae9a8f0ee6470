"""How a packed row is cut over context ranks: nothing lost, nothing twice, and zigzag's triangles balanced."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from vime.trainer.context import ContextCut, attend_cut, segments

rows = st.lists(st.integers(1, 40), min_size=1, max_size=6)


class Alone:
    """What `ContextCut.of` asks of a process group."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size


@given(rows, st.integers(1, 5), st.booleans())
def test_ranks_hold_each_token_once_and_find_it_again(lengths: list[int], ranks: int, zigzag: bool) -> None:
    cuts = [ContextCut.of(lengths, Alone(rank, ranks), zigzag, torch.device("cpu")) for rank in range(ranks)]
    held = torch.cat([cut.held for cut in cuts])
    assert sorted(held.tolist()) == list(range(sum(lengths)))
    padded = torch.cat([torch.nn.functional.pad(cut.held, (0, cut.width - len(cut.held)), value=-1) for cut in cuts])
    assert all(padded[cut.restore].tolist() == list(range(sum(lengths))) for cut in cuts)


@given(st.integers(1, 8), st.integers(1, 6))
def test_zigzag_gives_ranks_equal_shares_of_the_causal_triangle(chunk: int, ranks: int) -> None:
    length = 2 * ranks * chunk
    work = [
        sum(sum(range(run.first + 1, run.last + 1)) for run in segments([length], ranks, r, True)) for r in range(ranks)
    ]
    assert len(set(work)) == 1


@given(rows, st.integers(1, 4))
def test_contiguous_runs_differ_by_at_most_one_token(lengths: list[int], ranks: int) -> None:
    sizes = [sum(run.last - run.first for run in segments(lengths, ranks, r, False)) for r in range(ranks)]
    assert max(sizes) - min(sizes) <= 1


@given(rows, st.integers(1, 4), st.booleans(), st.integers(0, 99))
def test_cut_attention_and_its_gradients_equal_the_whole(
    lengths: list[int], ranks: int, zigzag: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(sum(lengths), heads, 4, generator=generator, dtype=torch.float64).requires_grad_()
        for heads in (4, 2, 2)
    )
    expected, first = [], 0
    for n in lengths:
        part = [x[first : first + n].transpose(0, 1) for x in (q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))]
        scores = part[0] @ part[1].transpose(1, 2) / 2
        scores = scores.masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), float("-inf"))
        expected.append((scores.softmax(-1) @ part[2]).transpose(0, 1))
        first += n
    whole = torch.cat(expected)
    own = torch.zeros_like(whole)
    for rank in range(ranks):
        cut = ContextCut.of(lengths, Alone(rank, ranks), zigzag, torch.device("cpu"))
        own = own.index_copy(0, cut.held, attend_cut(q[cut.held], k, v, cut))
    torch.testing.assert_close(own, whole)
    weights = torch.linspace(-1, 1, whole.numel(), dtype=torch.float64).view_as(whole)
    for mine, theirs in zip(
        torch.autograd.grad((own * weights).sum(), (q, k, v)),
        torch.autograd.grad((whole * weights).sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)
