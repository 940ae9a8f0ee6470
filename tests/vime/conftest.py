"""What several packages' tests share: a tiny checkpoint folder, a character tokenizer, and resolved arguments."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CONFIG = {
    "model_type": "qwen2",
    "hidden_size": 128,
    "intermediate_size": 320,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
}


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """One token a character (printable ASCII), then specials; <eos> ends a turn."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    specials = ["<pad>", "<eos>", "<unk>", "<|im_start|>", "<|im_end|>"]
    vocabulary = {text: i for i, text in enumerate([*specials, *map(chr, range(32, 127)), "\n"])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
    )


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    """A folder with config.json and the tokenizer, no weights."""
    folder = tmp_path_factory.mktemp("checkpoint")
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.fixture
def prompt_file(tmp_path: Path) -> Path:
    """40 prompts, rows 1 to 40."""
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"input": f"p{i:02}=", "label": str(i)}) + "\n" for i in range(40)))
    return path


@pytest.fixture
def make_args(checkpoint: Path, prompt_file: Path) -> Callable[..., Namespace]:
    """Resolved arguments of a small valid CPU run; more flags as strings, defaults in between may be overridden."""
    from vime.arguments import parse_args

    def make(*flags: str) -> Namespace:
        base = {
            "--hf-checkpoint": str(checkpoint),
            "--prompt-data": str(prompt_file),
            "--label-key": "label",
            "--rm-type": "reverse_word",
            "--num-rollout": "3",
            "--rollout-batch-size": "4",
            "--n-samples-per-prompt": "2",
            "--rollout-max-response-len": "8",
            "--device": "cpu",
        }
        given = {flag for flag in flags if flag.startswith("--")}
        return parse_args(
            [word for flag, value in base.items() if flag not in given for word in (flag, value)] + list(flags)
        )

    return make
