"""Sampling masks: without top-k (``vllm.patch``), and with log-probabilities normalised on them (``vllm-score-centering.patch``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine

PROMPT = [(37 * i + 5) % 300 + 3 for i in range(20)]


def nucleus(logits: Any, top_p: float, top_k: int) -> Any:
    """log q on the smallest set of likeliest tokens with at least ``top_p`` of the mass (after top-k), -inf elsewhere; fp64."""
    import torch

    if top_k > 0:
        kept = torch.full_like(logits, -torch.inf)
        best = logits.topk(top_k).indices
        kept[best] = logits[best]
        logits = kept
    probabilities, order = logits.softmax(-1).sort(descending=True)
    before = probabilities.cumsum(-1) - probabilities
    support = torch.zeros_like(logits, dtype=torch.bool)
    support[order[(before < top_p) & (probabilities > 0)]] = True
    return logits.masked_fill(~support, -torch.inf).log_softmax(-1)


def test_sampling_mask_without_top_k(masks: Any) -> None:
    """With top-p alone the mask is the nucleus; a smaller top-p gives a subset of it."""
    choices = [
        masks.generate(PROMPT, max_tokens=1, temperature=1.0, top_p=top_p, top_k=-1, seed=2)["choices"][0]
        for top_p in (0.5, 0.9)
    ]
    small, large = (set(choice["sampling_mask"][0]) for choice in choices)
    assert small < large
    assert len(large) < 320
    assert choices[0]["token_ids"][0] in small


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"), [(0.7, 0.8, -1), (1.0, 0.95, -1), (1.0, 0.9, 50), (0.5, 1.0, 10)]
)
def test_values_against_fp64(masks: Any, models: dict[str, Path], temperature: float, top_p: float, top_k: int) -> None:
    """Support and values equal an fp64 reference of the sampler; the sampled token's entry is its log-probability."""
    import torch
    from transformers import AutoModelForCausalLM

    choice = masks.generate(
        PROMPT, max_tokens=8, temperature=temperature, top_p=top_p, top_k=top_k, seed=1, logprobs=0
    )["choices"][0]
    tokens = choice["token_ids"]
    model = AutoModelForCausalLM.from_pretrained(models["a"], dtype=torch.float64)
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT + tokens])).logits[0, len(PROMPT) - 1 :]
    assert len(choice["sampling_mask_logprobs"]) == len(tokens) == 8
    for i, token in enumerate(tokens):
        ids, values = choice["sampling_mask"][i], choice["sampling_mask_logprobs"][i]
        expected = nucleus(logits[i] / temperature, top_p, top_k)
        assert sorted(ids) == expected.isfinite().nonzero().flatten().tolist()
        assert torch.tensor(values).exp().sum().item() == pytest.approx(1, abs=1e-5)
        assert values == pytest.approx(expected[ids].tolist(), abs=2e-5)
        sampled = choice["logprobs"]["content"][i]["logprob"]
        assert values[ids.index(token)] == pytest.approx(sampled, abs=1e-5)


def test_stream_with_several_tokens_an_event(masks: Any) -> None:
    """Events of several tokens carry as many positions, and together what a plain answer has."""
    sampling = {"max_tokens": 11, "temperature": 1.0, "top_p": 0.9, "top_k": -1, "seed": 4}
    whole = masks.generate(PROMPT, **sampling)["choices"][0]
    body = masks.request(PROMPT, stream=True, stream_interval=4, **sampling)
    events = [event["choices"][0] for event in masks.events("/inference/v1/generate", body)]
    assert max(len(event["token_ids"]) for event in events) >= 4
    for event in events:
        assert len(event["sampling_mask"]) == len(event["sampling_mask_logprobs"]) == len(event["token_ids"])
    for field in ("token_ids", "sampling_mask", "sampling_mask_logprobs"):
        assert [entry for event in events for entry in event[field]] == whole[field]


def test_wide_rows_speculative_rows_and_joined_outputs(inside: Any) -> None:
    """Supports wider than the compact buffer are exact, chunks join in order, and a slow reader's outputs keep every position."""
    found = inside.interpreted("mask_values.py")
    kernel = found["kernel"]
    for name in ("whole", "joined"):
        assert kernel[name]["token_ids"] == kernel["expected"]["token_ids"]
        for values, expected in zip(kernel[name]["logprobs"], kernel["expected"]["logprobs"], strict=True):
            assert values == pytest.approx(expected, abs=1e-6)
    assert kernel["second_request"]["token_ids"] == kernel["expected"]["token_ids"][3:]
    assert found["joined"] == {
        "token_ids": [1, 2, 3],
        "mask": [[1, 2], [2, 3], [3, 4]],
        "logprobs": [[-0.25, -0.5], [-0.5, -1.0], [-0.75, -1.5]],
        "weight_version": "v3",
    }
