"""Which tokens of a micro-batch the model is given: each once, however many samples begin with it, and none that nothing is asked of.

The answers to one prompt are trained together, and in a causal model their prompts have the same hidden states in every layer. So a
prompt lies in the packed row once and its answers follow it; only attention sees each sequence as a whole, through `expand`. The last
token of a sequence predicts nothing that is scored, so it is left out. Both are exact: no value that a loss reads changes but by rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """`tokens` int64 [row]: ids as the model gets them. `lengths`: of each sequence, how many of its tokens are in the row (its
    own or another's). `expand` int64 [sum of lengths]: where they are. `keep` int64 [row]: the first place of each in `expand`.
    """

    tokens: Ints
    lengths: Ints
    expand: Ints
    keep: Ints

    @property
    def shares(self) -> bool:
        """Whether some token of the row belongs to several sequences."""
        return len(self.expand) > len(self.keep)


def lay_out(sequences: Sequence[Sequence[int]], prompts: Sequence[int], whole: bool = False) -> Layout:
    """A row for `sequences` (each >= 1 token), whose first `prompts[i]` tokens may be another's too.

    `whole`: every token of every sequence has a place of its own, in order.
    """
    sizes = np.fromiter((len(tokens) for tokens in sequences), np.int64, len(sequences))
    if whole:
        every = np.fromiter((token for tokens in sequences for token in tokens), np.int64, int(sizes.sum()))
        places = np.arange(len(every))
        return Layout(every, sizes, places, places)
    lengths = np.maximum(sizes - 1, 1)
    shared = np.minimum(np.fromiter(prompts, np.int64, len(sequences)), lengths)
    row: list[int] = []
    known: dict[tuple[int, ...], int] = {}
    prompt_at, answer_at = np.empty_like(sizes), np.empty_like(sizes)
    for i, (tokens, length, common) in enumerate(zip(sequences, lengths.tolist(), shared.tolist(), strict=True)):
        prompt = tuple(tokens[:common])
        if prompt not in known:
            known[prompt] = len(row)
            row += prompt
        prompt_at[i], answer_at[i] = known[prompt], len(row)
        row += tokens[common:length]
    within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    past = within - np.repeat(shared, lengths)
    expand = np.where(past < 0, np.repeat(prompt_at, lengths) + within, np.repeat(answer_at, lengths) + past)
    return Layout(np.asarray(row, np.int64), lengths, expand, np.unique(expand, return_index=True)[1])


def apart(lengths: Sequence[int]) -> Layout:
    """The layout of sequences of these lengths that share nothing; its tokens are left out."""
    places = np.arange(sum(lengths))
    return Layout(np.zeros(0, np.int64), np.asarray(lengths, np.int64), places, places)


def padded(layout: Layout, multiple: int) -> Layout:
    """`layout` with a sequence of its own behind the others, so that the row is a multiple of `multiple` tokens."""
    missing = -len(layout.tokens) % multiple
    if not missing:
        return layout
    more = np.arange(missing)
    return Layout(
        np.append(layout.tokens, np.zeros(missing, np.int64)),
        np.append(layout.lengths, missing),
        np.append(layout.expand, len(layout.tokens) + more),
        np.append(layout.keep, len(layout.expand) + more),
    )
