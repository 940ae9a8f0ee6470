"""Conversion moves every element to its place and back, for any cut, and says clearly what it cannot do."""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_models
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from vime.convert import hf
from vime.convert.config import check_args, model_shape, read_hf_config
from vime.convert.cut import Cut, Share
from vime.convert.families import FAMILIES, entries, supported
from vime.convert.rules import FusedGateUp, GateUp, QueryKeyValue, Vocabulary
from vime.convert.shape import ModelShape
from vime.convert.table import support_table
from vime.errors import VimeError


def a_shape(family: str, *, groups: int = 4, per_group: int = 2, vocab: int = 21) -> ModelShape:
    heads = groups * per_group
    sizes = {"hidden_size": 24, "num_attention_heads": heads, "num_key_value_heads": groups, "vocab_size": vocab}
    return model_shape(tiny_models.make_config(family, **sizes | ({} if family == "deepseek_v3" else {"head_dim": 2})))


def weights_of(config: Any, directory: Path) -> dict[str, torch.Tensor]:
    """The weights of a model of this configuration as transformers writes them, every element another number."""
    with torch.device("cpu"):
        model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(directory)
    serial = itertools.count()
    return {
        name: torch.arange(start := next(serial) * 1e4, start + tensor.numel(), dtype=torch.float64).reshape(
            tensor.shape
        )
        for name, tensor in load_file(directory / "model.safetensors").items()
    }


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(sorted(FAMILIES)),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2]),
    st.integers(1, 3),
    st.integers(5, 40),
    st.booleans(),
)
def test_round_trip_is_exact_for_any_cut(
    family: str, tensor: int, expert: int, expert_tensor: int, per_group: int, vocab: int, tied: bool
) -> None:
    over: dict[str, Any] = {"vocab_size": vocab, "tie_word_embeddings": tied, "num_attention_heads": 4 * per_group}
    config = tiny_models.make_config(family, num_key_value_heads=4, hidden_size=24, **over)
    shape = model_shape(config)
    with tempfile.TemporaryDirectory() as folder:
        source = weights_of(config, Path(folder))
    back: dict[str, torch.Tensor] = {}
    for entry in entries(shape):
        ranks = tensor if entry.expert is None else expert_tensor
        cuts = [
            Cut(Share(r, tensor), Share(e, expert), Share(r, expert_tensor))
            for r in range(ranks)
            for e in range(expert)
        ]
        holders = [cut for cut in cuts if cut.local_name(entry, shape) is not None]
        assert len(holders) == ranks * (1 if entry.expert is not None else expert)
        shards = [
            entry.rule.shard(lambda name, entry=entry: source[entry.fill(name)], shape, rank, ranks)
            for rank in range(ranks)
        ]
        assert len({shard.shape for shard in shards}) == 1
        back |= zip(entry.sources, entry.rule.merge(shards, shape), strict=True)
    assert set(back) == set(source)
    assert all(torch.equal(back[name], source[name]) for name in source)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_expert_and_layer_is_somewhere_once(family: str) -> None:
    shape = model_shape(tiny_models.make_config(family, num_hidden_layers=4))
    cuts = [Cut(expert=Share(e, 4), stage=Share(s, 2)) for e in range(4) for s in range(2)]
    for entry in entries(shape):
        places = {(cut.stage.rank, cut.expert.rank): name for cut in cuts if (name := cut.local_name(entry, shape))}
        assert len(places) == (4 if entry.expert is None else 1)
        assert len({stage for stage, _ in places}) == len(set(places.values())) == 1


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
    fused = {"both": torch.cat((source["g"], source["u"]))}
    assert torch.equal(FusedGateUp("both").shard(fused.__getitem__, a_shape("glm4"), 1, 2), shard)


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
    with pytest.raises(
        VimeError, match="'minimax_m2' cannot be converted; supported: deepseek_v3, glm4, glm4_moe, llama, "
    ) as caught:
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
        ("qwen3_moe", {"attention_bias": True}, "attention_bias=True"),
        ("glm4_moe", {"norm_topk_prob": False}, "norm_topk_prob=False"),
        ("deepseek_v3", {"topk_group": 4}, "topk_group=4"),
        ("deepseek_v3", {"attention_bias": True}, "attention_bias=True"),
    ],
)
def test_settings_that_would_be_computed_wrongly_are_refused(family: str, setting: dict[str, Any], named: str) -> None:
    with pytest.raises(VimeError, match=named):
        model_shape(tiny_models.make_config(family, **setting))


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


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_documented_table_is_that_of_the_code(language: str) -> None:
    page = Path(__file__).parents[3] / "docs" / language / "runtime" / "models.md"
    assert support_table() in page.read_text(encoding="utf-8")


def test_who_holds_what_is_gathered_once_for_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every weight update exports all names; asking all ranks for theirs each time cost a collective of Python objects."""
    asked = []
    monkeypatch.setattr(hf, "_gather_owners", lambda *given: asked.append(given) or {"a": (len(asked), [])})
    shape, model = a_shape("qwen3"), torch.nn.Linear(1, 1)
    found = [hf._owners(model, {}, shape, Cut()) for _ in range(3)]
    assert found == [{"a": (1, [])}] * 3
    hf._owners(model, {}, shape, Cut(expert=Share(0, 2)))
    hf._owners(torch.nn.Linear(1, 1), {}, shape, Cut())
    assert len(asked) == 3
