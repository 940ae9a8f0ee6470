"""The toy's words, model and warm-up measure."""

from __future__ import annotations

import asyncio
import itertools
import json
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from vime.arguments.check_sizes import CPU_HEAD_SIZES
from vime.sample import Sample
from vime.toy import model, reward, warmup, words


def test_words_are_reproducible_and_of_the_length() -> None:
    assert list(itertools.islice(words.words(3), 5)) == list(itertools.islice(words.words(3), 5))
    assert all(len(word) == words.LENGTH and word.islower() for word in itertools.islice(words.words(4), 50))
    assert words.prompt("abcde") == "rabcde="
    assert words.answer("abcde") == "edcba"


def test_rows_are_what_prompt_data_reads(tmp_path: Path) -> None:
    path = words.write_rows(tmp_path / "rows.jsonl", ["abcde"])
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"prompt": "rabcde=", "answer": "edcba"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model.write_model(tmp_path_factory.mktemp("toy") / "model", seed=0)


def test_the_model_is_small_and_its_heads_have_a_kernel(folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(folder)
    assert 0.7e6 < sum(parameter.numel() for parameter in network.parameters()) < 0.9e6
    config = json.loads((folder / "config.json").read_text())
    assert config["hidden_size"] // config["num_attention_heads"] in CPU_HEAD_SIZES


def test_the_tokenizer_has_a_token_a_character_and_agrees_with_the_warmup(folder: Path) -> None:
    from vime.data.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(str(folder))
    sample = warmup._sample(0, "abcde")
    assert tokenizer("rabcde=", add_special_tokens=False)["input_ids"] == sample.tokens[:7]
    assert tokenizer.decode(sample.tokens) == "rabcde=edcba<eos>"
    assert sample.tokens[-1] == tokenizer.eos_token_id


def test_sampled_exact_is_the_mean_probability_of_the_whole_answer() -> None:
    assert warmup.sampled_exact([torch.tensor([0.5, 0.5]).log(), torch.tensor([0.1]).log()]) == pytest.approx(0.175)


@pytest.mark.parametrize(("response", "score"), [("edcba", 1.0), ("edcb", 0.0), ("edcbax", 0.0)])
def test_exact_wants_the_whole_answer(response: str, score: float) -> None:
    sample = Sample(prompt="rabcde=", response=response, label="edcba")
    assert asyncio.run(reward.exact(Namespace(), sample)) == score
