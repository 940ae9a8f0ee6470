"""What samples begin with alike is computed once: the row is shorter, and nothing that is learnt from it changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import make_samples

from vime.sample import Sample
from vime.trainer import batching, prefix
from vime.trainer.attention import Rotary, pack
from vime.trainer.model import Scoring
from vime.trainer.trainer import Trainer

tokens_of = st.lists(st.integers(0, 3), min_size=1, max_size=6)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(tokens_of, st.lists(st.integers(0, 3), max_size=5)), min_size=1, max_size=12))
def test_each_sequence_is_found_in_the_row_and_each_prompt_is_there_once(
    pairs: list[tuple[list[int], list[int]]],
) -> None:
    sequences, prompts = [a + b for a, b in pairs], [len(a) for a, _ in pairs]
    found = prefix.lay_out(sequences, prompts)
    lengths = found.lengths.tolist()
    assert lengths == [max(len(tokens) - 1, 1) for tokens in sequences]
    for tokens, part in zip(sequences, torch.from_numpy(found.expand).split(lengths), strict=True):
        assert found.tokens[part.numpy()].tolist() == tokens[: len(part)]
    assert found.expand[found.keep].tolist() == list(range(len(found.tokens)))
    distinct = {tuple(tokens[: min(n, size)]) for tokens, n, size in zip(sequences, prompts, lengths, strict=True)}
    answers = sum(max(size - n, 0) for n, size in zip(prompts, lengths, strict=True))
    assert len(found.tokens) == sum(map(len, distinct)) + answers


def test_positions_are_those_in_the_sequence() -> None:
    layout = prefix.lay_out([[5, 6, 1, 2], [7, 3], [5, 6, 4]], [2, 1, 2])
    packed = pack(
        layout.lengths.tolist(), Rotary(torch.ones(2), 1.0), torch.float32, torch.device("cpu"), layout=layout
    )
    assert layout.tokens.tolist() == [5, 6, 1, 7]
    assert packed.positions.tolist() == [0, 1, 2, 0]


def siblings(groups: int, size: int) -> list[Sample]:
    """Groups of answers to one prompt each, of many lengths, one of them empty; two groups ask the same."""
    samples = make_samples(groups, size, longest=9)
    for i, sample in enumerate(samples):
        sample.tokens = samples[i // size * size].tokens[:4] + sample.tokens[sample.prompt_length :]
    for sample in samples[size : 2 * size]:
        sample.tokens[:4] = samples[0].tokens[:4]
    return samples


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_log_probs_and_gradients_are_those_of_whole_sequences(new_trainer: Callable[..., Trainer], family: str) -> None:
    trainer = new_trainer(family)
    data = trainer.train_data(siblings(3, 4))
    everyone = list(range(12))
    rotary = trainer.model.rotary
    found: list[Any] = []
    for whole in (True, False):
        batch = batching.pack_micro_batch(
            data, everyone, rotary=rotary, dtype=torch.float32, device=torch.device("cpu"), whole=whole
        )
        trainer.actor.ddp.zero_grad_buffer()
        scores = trainer.actor.ddp(batch.tokens, batch.packed, Scoring(batch.rows, batch.targets))
        weights = torch.linspace(-1, 1, len(batch.targets))
        (scores.log_probs * weights + 0.1 * scores.entropy).sum().backward()
        gradients = torch.cat([p.main_grad.flatten() for p in trainer.model.parameters()])
        found.append((len(batch.tokens), batch.targets, scores.log_probs.detach(), gradients))
    (long, targets, log_probs, gradient), (short, *shared) = found
    assert short < long - 8 * 4  # of the twelve prompts of four tokens, ten are another's; and no last token
    assert torch.equal(targets, shared[0])
    torch.testing.assert_close(shared[1], log_probs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(shared[2], gradient, rtol=1e-4, atol=1e-5 * float(gradient.abs().max()))
