"""A small Qwen3 with a tokenizer of one token a character, made on the spot."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from vime.toy.sizes import SMALL, Size
from vime.toy.words import EOS, PAD, VOCABULARY


def write_model(folder: Path, seed: int, size: Size = SMALL) -> Path:
    """A randomly initialised checkpoint in Hugging Face's format: configuration, tokenizer, weights."""
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    pad, eos, bos = 0, 1, 2
    ids = {"pad_token_id": pad, "eos_token_id": eos, "bos_token_id": bos}
    config = Qwen3Config(
        vocab_size=len(VOCABULARY),
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        tie_word_embeddings=True,
        initializer_range=0.02,
        architectures=["Qwen3ForCausalLM"],
        dtype=torch.float32,
        **size.shape,
        **ids,
    )
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config)
    _scale_residuals(model, size)
    model.generation_config = GenerationConfig(**ids)
    staging = folder.with_name(f".{folder.name}.tmp-{os.getpid()}")
    shutil.rmtree(staging, ignore_errors=True)
    model.save_pretrained(staging)
    _tokenizer().save_pretrained(staging)
    shutil.rmtree(folder, ignore_errors=True)
    staging.rename(folder)
    return folder


def _scale_residuals(model: Any, size: Size) -> None:
    """Smaller initial output projections, so that the residual stream keeps its size over the layers (GPT-2's rule)."""
    import torch

    factor = (2 * size.shape["num_hidden_layers"]) ** -0.5
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.mul_(factor)


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    table = {token: number for number, token in enumerate(VOCABULARY)}
    inner = Tokenizer(models.WordLevel(table, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token=PAD, eos_token=EOS, bos_token="<bos>", unk_token="<unk>", padding_side="left"
    )
