"""FP8 in blocks: bounds of the error, what is stored in it and what is not, and checkpoints there and back."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from vime.convert import fp8, hf
from vime.convert.config import model_shape, read_hf_config
from vime.convert.fp8 import Blocks
from vime.errors import VimeError

SMALL = Blocks(4, 8)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 13), st.integers(1, 20), st.integers(0, 10**6), st.sampled_from([1e-30, 1e-3, 1.0, 1e30]))
def test_error_is_within_its_bound_block_by_block(rows: int, columns: int, seed: int, size: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=generator) * size
    weight[torch.rand(rows, columns, generator=generator) < 0.2] = 0
    stored, scale = fp8.quantise(weight, SMALL)
    assert stored.dtype == torch.float8_e4m3fn
    assert scale.shape == (-(-rows // 4), -(-columns // 8))
    back = fp8.dequantise(stored, scale, SMALL).double().numpy()
    exact = weight.double().numpy()
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            block = exact[4 * i : 4 * i + 4, 8 * j : 8 * j + 8]
            peak = np.abs(block).max()
            assert scale[i, j].item() == pytest.approx(peak / 448 if peak else 1.0, rel=1e-6)
            bound = np.maximum(np.abs(block) / 16, scale[i, j].item() / 1024) * (1 + 1e-5)
            assert (np.abs(back[4 * i : 4 * i + 4, 8 * j : 8 * j + 8] - block) <= bound).all()


def test_blocks_of_zeros_and_of_one_value_are_exact() -> None:
    """A block of zeros has no largest value to divide by."""
    weight = torch.zeros(8, 16)
    weight[4:, 8:] = 3.7
    back = fp8.dequantise(*fp8.quantise(weight, SMALL), SMALL)
    assert torch.allclose(back, weight, rtol=1e-6, atol=0)
    with pytest.raises(VimeError, match="not finite"):
        fp8.quantise(torch.tensor([[1.0, float("nan")]]), SMALL)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, None),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, Blocks()),
        ({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [64, 32], "modules_to_not_convert": ["lm_head"]}, Blocks(64, 32, ("lm_head",))),
        ({"quant_method": "fp8", "fmt": "e5m2", "weight_block_size": [128, 128]}, "e5m2"),
        ({"quant_method": "fp8", "fmt": "e4m3"}, "in blocks of None"),
        ({"quant_method": "awq"}, "'awq'"),
    ],
)  # fmt: skip
def test_configurations(config: dict[str, Any] | None, expected: Any) -> None:
    """THUDM/slime#1679: a configuration without `fmt` was rejected with the engine half updated."""
    given_config = SimpleNamespace(quantization_config=config)
    if isinstance(expected, str):
        with pytest.raises(VimeError, match=expected):
            Blocks.of(given_config, "config.json")
    else:
        assert Blocks.of(given_config, "config.json") == expected


def test_projections_are_stored_in_fp8_and_nothing_else(tmp_path: Path) -> None:
    source = tiny_models.make_checkpoint(tmp_path / "m", "deepseek_v3")
    blocks = Blocks(16, 16, ("layers.0.self_attn.o_proj",))
    weights = load_file(source / "model.safetensors")
    out = dict(fp8.quantised(weights.items(), blocks))
    small = {name for name, tensor in out.items() if tensor.dtype == torch.float8_e4m3fn}
    assert small == {n for n in weights if "_proj" in n and "layers.0.self_attn.o_proj" not in n}
    assert {name + fp8.SUFFIX for name in small} == set(out) - set(weights)


def test_a_quantised_checkpoint_reads_back(tmp_path: Path) -> None:
    """Exported, read into a reader again: the values are those that an engine computes with; exported again, the same bits."""
    source = tiny_models.make_checkpoint(tmp_path / "m", "qwen3")
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [16, 16]}
    (source / "config.json").write_text(json.dumps(config))
    blocks = Blocks.of(read_hf_config(source), "m")
    weights = load_file(source / "model.safetensors")
    hf.save_hf(fp8.quantised(weights.items(), blocks), tmp_path / "out", source)
    stored = load_file(tmp_path / "out" / "model.safetensors")
    reader = hf.HfReader(tmp_path / "out", blocks)
    assert reader.names == set(weights)
    name = "model.layers.1.mlp.up_proj.weight"
    whole = fp8.dequantise(stored[name], stored[name + fp8.SUFFIX], blocks)
    assert torch.equal(reader(name)[:], whole)
    assert torch.equal(reader(name)[8:40, 16:], whole[8:40, 16:])
    again, _ = fp8.quantise(whole, blocks)
    assert torch.equal(again.view(torch.uint8), stored[name].view(torch.uint8))
    reader.close()
    assert model_shape(read_hf_config(tmp_path / "out")).layers == 2
