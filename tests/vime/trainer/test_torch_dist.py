"""Weights in Megatron's distributed format: one written by hand, as converters from Hugging Face lay it out, is what the Hugging Face
checkpoint is; one that Megatron writes comes back to the bit in any layout."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.distributed.checkpoint as dcp
from rank_pool import run_ranks
from safetensors.torch import load_file

from vime.errors import VimeError
from vime.trainer import torch_dist
from vime.trainer.checkpoint import MARKER
from vime.trainer.trainer import Trainer

NewTrainer = Callable[..., Trainer]
Tensors = dict[str, torch.Tensor]


def _of_layer(hf: Tensors, i: int) -> Tensors:
    """One layer by the names and in the order of Megatron with Transformer Engine: q, k and v of each group of heads one after
    another, gate before up."""
    of, layer = f"model.layers.{i}.", {}
    q, k, v = (hf[f"{of}self_attn.{name}_proj.weight"] for name in "qkv")
    groups = [part.chunk(2) for part in (q, k, v)]
    layer["self_attention.linear_qkv.weight"] = torch.cat([groups[part][g] for g in range(2) for part in range(3)])
    layer["self_attention.linear_proj.weight"] = hf[of + "self_attn.o_proj.weight"]
    layer["self_attention.linear_qkv.layer_norm_weight"] = hf[of + "input_layernorm.weight"]
    if of + "self_attn.q_norm.weight" in hf:
        for name in "qk":
            layer[f"self_attention.{name}_layernorm.weight"] = hf[f"{of}self_attn.{name}_norm.weight"]
    if of + "mlp.gate.weight" not in hf:
        layer["mlp.linear_fc1.layer_norm_weight"] = hf[of + "post_attention_layernorm.weight"]
        layer["mlp.linear_fc1.weight"], layer["mlp.linear_fc2.weight"] = _mlp(hf, f"{of}mlp.")
        return layer
    layer["pre_mlp_layernorm.weight"] = hf[of + "post_attention_layernorm.weight"]
    layer["mlp.router.weight"] = hf[of + "mlp.gate.weight"]
    experts = [_mlp(hf, f"{of}mlp.experts.{e}.") for e in range(8)]
    for number in (1, 2):
        layer[f"mlp.experts.experts.linear_fc{number}.weight"] = torch.stack([both[number - 1] for both in experts])
    return layer


def _mlp(hf: Tensors, of: str) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.cat([hf[f"{of}gate_proj.weight"], hf[f"{of}up_proj.weight"]]), hf[f"{of}down_proj.weight"]


def write_by_hand(source: Path, root: Path, *, folder: str = "release", apart: bool = False) -> Path:
    """A converter's work: layers stacked, or `apart`, and the vocabulary padded to 128."""
    hf = load_file(source / "model.safetensors")
    layers = [_of_layer(hf, i) for i in range(2)]
    if apart:
        whole = {f"decoder.layers.{i}.{name}": tensor for i, of in enumerate(layers) for name, tensor in of.items()}
    else:
        whole = {f"decoder.layers.{name}": torch.stack([of[name] for of in layers]) for name in layers[0]}
    whole["decoder.final_layernorm.weight"] = hf["model.norm.weight"]
    for name, held in (("embedding.word_embeddings", "model.embed_tokens"), ("output_layer", "lm_head")):
        if f"{held}.weight" in hf:
            padded = torch.full((128, hf[f"{held}.weight"].shape[1]), 7.0)
            padded[: len(hf[f"{held}.weight"])] = hf[f"{held}.weight"]
            whole[f"{name}.weight"] = padded
    place = root / folder
    dcp.save(whole, checkpoint_id=str(place), no_dist=True)
    (place / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1}))
    (place / "common.pt").write_bytes(b"never read")
    (root / MARKER).write_text("release" if folder == "release" else str(int(folder.removeprefix("iter_"))))
    return root


@pytest.mark.parametrize(
    ("family", "apart"), [("llama", False), ("qwen3", True), ("qwen3_moe", False), ("qwen3_moe", True)]
)
def test_a_converted_checkpoint_is_the_one_it_was_made_of(
    new_trainer: NewTrainer,
    checkpoints: dict[str, Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    family: str,
    apart: bool,
) -> None:
    root = write_by_hand(checkpoints[family], tmp_path, apart=apart)
    trainer = new_trainer(family, load=str(root))
    assert trainer.started_at == 0
    assert trainer.restored is None
    assert "a new run starts from its weights" in caplog.text
    original = load_file(checkpoints[family] / "model.safetensors")
    exported = {name: tensor.clone() for name, tensor in trainer.iter_hf_weights()}
    assert exported.keys() == original.keys()
    assert all(torch.equal(exported[name], original[name]) for name in original)


def test_a_reference_may_be_in_that_format_and_ones_own_go_on_beside_it(
    new_trainer: NewTrainer, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    root = str(write_by_hand(checkpoints["llama"], tmp_path, folder="iter_0000004"))
    flags: dict[str, Any] = {"use_kl_loss": True, "kl_loss_coef": 0.1, "ref_load": root, "ref_ckpt_step": 4}
    trainer = new_trainer("llama", load=root, save=root, **flags)
    trainer.save(1, blob="cursor")
    resumed = new_trainer("llama", load=root, **(flags | {"ref_load": f"{root}/iter_0000004", "ref_ckpt_step": None}))
    assert (resumed.started_at, resumed.restored) == (2, "cursor")


def test_another_models_checkpoint_and_a_damaged_one_are_refused(
    new_trainer: NewTrainer, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    root = write_by_hand(checkpoints["llama"], tmp_path)
    with pytest.raises(VimeError, match=r"the checkpoint has no decoder\.layers\.self_attention\.k_layernorm\.weight"):
        new_trainer("qwen3", load=str(root))
    (tmp_path / "release" / ".metadata").write_bytes(b"\x80")
    with pytest.raises(VimeError, match="unreadable"):
        new_trainer("llama", load=str(root))
    (tmp_path / "release" / "metadata.json").write_text(json.dumps({"sharded_backend": "zarr"}))
    assert torch_dist.find(root) is None


STAGES: dict[str, Any] = {"pipeline_model_parallel_size": 2}
CUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "pp-llama": ("llama", STAGES),
    "tp-llama": ("llama", {"tensor_model_parallel_size": 2}),
    "ep-qwen3_moe": ("qwen3_moe", {"expert_model_parallel_size": 2}),
    "sp-qwen3_moe": ("qwen3_moe", {"tensor_model_parallel_size": 2, "sequence_parallel": True}),
    "pp-qwen3_moe": ("qwen3_moe", STAGES),
}


@pytest.mark.nightly
def test_stages_and_tensor_ranks_read_their_part(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    jobs = {}
    for name, (family, flags) in CUTS.items():
        (tmp_path / name).mkdir()
        root = write_by_hand(checkpoints[family], tmp_path / name)
        jobs[name] = {"checkpoint": str(checkpoints[family]), "flags": flags | {"load": str(root)}, "rollouts": []}
    for rank in run_ranks(2, jobs):
        for name, (family, _) in CUTS.items():
            for key, expected in load_file(checkpoints[family] / "model.safetensors").items():
                assert torch.equal(torch.from_numpy(rank[name]["weights"][key]), expected), (name, key)


@pytest.mark.nightly
def test_what_is_written_beside_a_checkpoint_is_the_same_weights(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    """Saved by two ranks after a step, read by Megatron's format alone in another layout, to the bit; ours goes on as ever."""
    cuts = {"qwen2": STAGES, "qwen3_moe": {"expert_model_parallel_size": 2}, "deepseek_v3": STAGES}
    other: dict[str, Any] = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
    saving = {
        family: {
            "checkpoint": str(checkpoints[family]),
            "flags": flags | {"ckpt_format": "torch_dist", "save": str(tmp_path / family)},
            "rollouts": [0],
            "save_after": 0,
        }
        for family, flags in cuts.items()
    }
    saved = run_ranks(2, saving, daemon=False)
    loading = {}
    for family in cuts:
        folder, alone = tmp_path / family / "iter_0000000", tmp_path / f"{family}-alone"
        manifest = json.loads((folder / "manifest.json").read_text())
        assert {path.name for path in folder.iterdir()} == {*manifest["files"], "manifest.json"}
        assert torch_dist.find(tmp_path / family) is None
        shutil.copytree(folder, alone, ignore=shutil.ignore_patterns("manifest.json", "*.pt"))
        common = {"checkpoint": str(checkpoints[family]), "rollouts": []}
        loading[family] = common | {"flags": other | {"load": str(alone)}}
        loading[f"{family}-ours"] = common | {"flags": cuts[family] | {"load": str(tmp_path / family)}}
    for before, after in zip(saved, run_ranks(2, loading), strict=True):
        for family in cuts:
            assert (after[family]["start"], after[f"{family}-ours"]["start"]) == (0, 1)
            for key, expected in before[family]["weights"].items():
                assert numpy.array_equal(after[family]["weights"][key], expected), (family, key)
