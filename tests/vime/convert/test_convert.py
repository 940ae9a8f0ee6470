"""Conversion moves every element to its place and back, for any cut, and says clearly what it cannot do."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_models
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import LlamaConfig, Qwen2Config, Qwen3Config

from vime.convert import hf
from vime.convert.config import ModelShape, check_args, model_shape, read_hf_config
from vime.convert.families import FAMILIES, supported
from vime.convert.rules import GateUp, QueryKeyValue, Vocabulary
from vime.errors import VimeError


def a_shape(family: str, *, groups: int = 4, per_group: int = 2, vocab: int = 21, tied: bool = False) -> ModelShape:
    return ModelShape(
        model_type=family,
        layers=2,
        hidden=24,
        ffn=8,
        heads=groups * per_group,
        groups=groups,
        head_dim=2,
        vocab=vocab,
        norm_eps=1e-6,
        tied=tied,
        max_positions=16,
        rope_theta=1e4,
        rope_type="default",
    )


def hf_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Shapes that transformers gives a model of this shape: the truth to convert from."""
    classes = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
    from transformers import AutoModelForCausalLM

    config = classes[shape.model_type](
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.ffn,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.groups,
        head_dim=shape.head_dim,
        tie_word_embeddings=shape.tied,
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    named = {name: tuple(p.shape) for name, p in model.state_dict().items()}
    return {name: size for name, size in named.items() if not (shape.tied and name == "lm_head.weight")}


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(sorted(FAMILIES)),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 3),
    st.integers(5, 40),
    st.booleans(),
)
def test_round_trip_is_exact_for_any_cut(family: str, ranks: int, per_group: int, vocab: int, tied: bool) -> None:
    shape = a_shape(family, per_group=per_group, vocab=vocab, tied=tied)
    serial = iter(range(10**6))
    source = {
        name: torch.tensor([float(next(serial)) for _ in range(torch.Size(size).numel())]).reshape(size)
        for name, size in hf_shapes(shape).items()
    }
    back: dict[str, torch.Tensor] = {}
    for _, rule, layer in FAMILIES[family].rules(shape):
        shards = [
            rule.shard(lambda name, layer=layer: source[name.format(i=layer)], shape, rank, ranks)
            for rank in range(ranks)
        ]
        assert len({shard.shape for shard in shards}) == 1
        merged = rule.merge(shards, shape)
        back |= {name.format(i=layer): t for name, t in zip(rule.sources, merged, strict=True)}
    assert set(back) == set(source)
    assert all(torch.equal(back[name], source[name]) for name in source)


def test_queries_lie_beside_the_keys_they_attend_with() -> None:
    """Rank 1 of 2 must hold whole groups: its queries, then their key, then their value."""
    shape = a_shape("llama", groups=2, per_group=2)
    source = {
        "q": torch.arange(8.0)[:, None],
        "k": 100 + torch.arange(4.0)[:, None],
        "v": 200 + torch.arange(4.0)[:, None],
    }
    shard = QueryKeyValue("q", "k", "v").shard(source.__getitem__, shape, 1, 2)
    assert shard[:, 0].tolist() == [4, 5, 6, 7, 102, 103, 202, 203]


def test_each_rank_gates_its_own_rows() -> None:
    source = {"g": torch.arange(8.0)[:, None], "u": 100 + torch.arange(8.0)[:, None]}
    shard = GateUp("g", "u").shard(source.__getitem__, a_shape("llama"), 1, 2)
    assert shard[:, 0].tolist() == [4, 5, 6, 7, 104, 105, 106, 107]


def test_padded_vocabulary_is_zero_and_goes_away() -> None:
    shape = a_shape("llama", vocab=5)
    source = torch.arange(1.0, 6.0)[:, None]
    shards = [Vocabulary("e").shard(lambda _: source, shape, rank, 4) for rank in range(4)]
    assert torch.cat(shards)[:, 0].tolist() == [1, 2, 3, 4, 5, 0, 0, 0]
    assert torch.equal(Vocabulary("e").merge(shards, shape)[0], source)


# -- checkpoints on disk -----------------------------------------------------------------------------------------------


def a_checkpoint(path: Path, **config: Any) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_unsupported_families_are_refused_with_the_supported_ones(tmp_path: Path) -> None:
    """THUDM/slime#2129: an unregistered architecture failed deep inside the conversion."""
    with pytest.raises(VimeError, match="'minimax_m2' cannot be converted; supported: llama, qwen2, qwen3") as caught:
        read_hf_config(a_checkpoint(tmp_path / "m", model_type="minimax_m2"))
    assert "families.py" in (caught.value.hint or "")
    assert supported() == tuple(sorted(FAMILIES))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"hidden_size": 4}'])
def test_a_directory_without_a_configuration_is_refused(tmp_path: Path, content: str) -> None:
    if content:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(VimeError, match="no readable Hugging Face configuration"):
        read_hf_config(tmp_path)


@pytest.mark.parametrize(
    ("family", "setting", "named"),
    [
        ("llama", {"attention_bias": True}, "attention_bias=True"),
        ("llama", {"mlp_bias": True}, "mlp_bias=True"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8}, "use_sliding_window=True"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
            "rope_type='dynamic'",
        ),
    ],
)
def test_settings_that_would_be_computed_wrongly_are_refused(family: str, setting: dict[str, Any], named: str) -> None:
    classes = {"llama": LlamaConfig, "qwen2": Qwen2Config}
    with pytest.raises(VimeError, match=named):
        model_shape(classes[family](**setting))


def test_every_contradicting_flag_is_listed() -> None:
    args = SimpleNamespace(num_layers=2, hidden_size=13, kv_channels=None, untie_embeddings_and_output_weights=False)
    with pytest.raises(VimeError) as caught:
        check_args(args, a_shape("llama"), "here")
    assert "--hidden-size is 13, the checkpoint says 24" in str(caught.value)
    assert "--untie-embeddings-and-output-weights is False" in str(caught.value)
    assert "num-layers" not in str(caught.value)


def test_export_in_several_files_reads_back(tmp_path: Path) -> None:
    source = tiny_models.make_checkpoint(tmp_path / "in", "qwen3")
    weights = load_file(source / "model.safetensors")
    hf.save_hf(weights.items(), tmp_path / "out", source, shard_bytes=40_000)
    assert len(list((tmp_path / "out").glob("model-*.safetensors"))) > 2
    reader = hf.HfReader(tmp_path / "out")
    assert reader.names == set(weights)
    assert all(torch.equal(reader(name)[:], weights[name]) for name in weights)
    reader.close()
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "qwen3"


def test_an_interrupted_export_leaves_the_older_one(tmp_path: Path) -> None:
    source = tiny_models.make_checkpoint(tmp_path / "in", "qwen3")
    weights = load_file(source / "model.safetensors")
    hf.save_hf(weights.items(), tmp_path / "out", source)

    def dies() -> Any:
        yield next(iter(weights.items()))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hf.save_hf(dies(), tmp_path / "out", source)
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == weights.keys()


def test_damaged_and_incomplete_weights_are_named(tmp_path: Path) -> None:
    source = tiny_models.make_checkpoint(tmp_path / "in", "qwen3")
    file = source / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(VimeError, match="unreadable weights"):
        hf.HfReader(source)
    file.unlink()
    with pytest.raises(VimeError, match=r"no \*\.safetensors files"):
        hf.HfReader(source)


def test_a_shard_that_the_index_names_and_nobody_has(tmp_path: Path) -> None:
    source = tiny_models.make_checkpoint(tmp_path / "in", "qwen3")
    index = {"weight_map": {"model.norm.weight": "model.safetensors", "lost.weight": "model-00002.safetensors"}}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(VimeError, match=r"1 tensors of the index are missing, first lost\.weight"):
        hf.HfReader(source)
