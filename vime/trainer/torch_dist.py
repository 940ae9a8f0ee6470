"""Weights in Megatron's distributed format (torch_dist), which its own training and converters of it leave behind.

    <root>/latest_checkpointed_iteration.txt    a number, or "release" for converted weights
    <root>/iter_0000012/ or <root>/release/     metadata.json, .metadata, *.distcp, common.pt

Tensors lie there by the names of the whole model, cut into pieces that any layout of ranks puts together for itself. Only weights
are read and written: how a run goes on is in `checkpoint`'s format. `.metadata` is a pickle, so read folders of people you trust;
common.pt, which holds objects of the program that wrote it, is left alone.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from pickle import PickleError
from typing import Any

import torch
import torch.distributed as dist

from vime.convert.hf import named_weights
from vime.convert.shape import ModelShape
from vime.errors import VimeError
from vime.trainer import parallel
from vime.trainer.checkpoint import MANIFEST, MARKER

_METADATA = "metadata.json"
_LAYER = re.compile(r"decoder\.layers\.(\d+)\.")
#: Norms that Transformer Engine has in the projection that follows, or not, and Megatron's local layers otherwise: both names.
_NORMS = (
    ("self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight"),
    ("mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight"),
    ("self_attention.q_layernorm.weight", "self_attention.linear_q_up_proj.layer_norm_weight"),
    ("self_attention.kv_layernorm.weight", "self_attention.linear_kv_up_proj.layer_norm_weight"),
)


def find(root: str | Path, step: int | None = None) -> Path | None:
    """The folder of `step`, or of the newest one, where Megatron wrote it in this format; `root` itself may be one. Else None, also
    where a checkpoint of ours has this format beside its own."""
    root = Path(root)
    names = [f"iter_{step:07d}"] if step is not None else ["", *_marked(root)]
    return next((root / name for name in names if _backend(root / name) == "torch_dist"), None)


def _marked(root: Path) -> list[str]:
    try:
        text = (root / MARKER).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return []
    return [f"iter_{int(text):07d}" if text.isdecimal() else text]


def _backend(folder: Path) -> str | None:
    if (folder / MANIFEST).exists():
        return None
    try:
        found = json.loads((folder / _METADATA).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found.get("sharded_backend") if isinstance(found, dict) else None


@torch.no_grad()
def load(model: Any, folder: Path) -> None:
    """Fill `model`, the part of one rank, with its weights in `folder`, reading only them; a collective.

    Raises VimeError when the model has weights that are not there, or of another shape.
    """
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.core import CheckpointingException
    from megatron.core.dist_checkpointing.mapping import ShardedObject
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        held = set(dist_checkpointing.load_tensors_metadata(str(folder)))
        # Megatron stacks layers that are alike; where some have experts it keeps them apart.
        apart = any(name.startswith("decoder.layers.0.") for name in held)
        wanted = {name: one for name, one in sharded(model, apart).items() if not isinstance(one, ShardedObject)}
        for one in wanted.values():
            one.key = _as_held(one.key, held)
        if missing := _of_all_ranks({one.key for one in wanted.values()} - held):
            raise VimeError(
                f"the checkpoint has no {missing[0]} ({len(missing)} of the model's tensors are missing)",
                where=str(folder),
                hint="is it of this model?",
            )
        found = dist_checkpointing.load(wanted, str(folder), common_strategy=_nothing_else())
    except (
        CheckpointingException,
        CheckpointException,
        EOFError,
        OSError,
        PickleError,
        RuntimeError,
        ValueError,
    ) as error:
        raise VimeError(
            f"unreadable: {type(error).__name__}: {error}".splitlines()[0],
            where=str(folder),
            hint="the folder is damaged, incomplete or of a model of another shape",
        ) from error
    weights = named_weights(model)
    for name, value in found.items():
        weights[name].copy_(value)


def _of_all_ranks(names: set[str]) -> list[str]:
    """Those of every rank: what one lacks, all must know of, or the others wait for it."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, names)
    return sorted(set().union(*found))


@torch.no_grad()
def save(model: Any, shape: ModelShape, folder: Path, iteration: int) -> list[str]:
    """Write the weights of `model` to an empty `folder`, by the names of layers with Transformer Engine; a collective. Returns the
    files of this rank."""
    from megatron.core import dist_checkpointing

    # So do scripts of models with experts, which list the layers that have them.
    described = sharded(model, apart=shape.experts is not None)
    for one in described.values():
        one.key = _with_engine(one.key, shape)
    described |= {"iteration": iteration, "checkpoint_version": 3.0}
    dist_checkpointing.save(described, str(folder))
    rank = dist.get_rank()
    own = [path.name for path in folder.glob(f"__{rank}_*.distcp")]
    return sorted(own) + ([_METADATA, ".metadata", "common.pt"] if rank == 0 else [])


def _with_engine(name: str, shape: ModelShape) -> str:
    """What Megatron calls a tensor of a layer with Transformer Engine, given its name in a local layer."""
    apart = [] if shape.latent is None else [0, 2, 3]
    layer = _LAYER.match(name)
    if layer is not None and shape.has_experts(int(layer[1])):
        apart.append(1)
    for number in apart:
        one, other = _NORMS[number]
        if name.endswith(f".{one}"):
            return name.removesuffix(one) + other
    return name


def sharded(model: Any, apart: bool) -> dict[str, Any]:
    """Megatron's description of a model's weights by local name: which piece of which tensor of the whole model each is."""
    metadata = {"dp_cp_group": parallel.data_and_context_group(), "non_homogeneous_layers": apart}
    described: dict[str, Any] = model.sharded_state_dict(metadata=metadata)
    return described


def _as_held(name: str, held: set[str]) -> str:
    """`name`, or the other one of the same norm that is `held`."""
    for pair in _NORMS:
        for one, other in (pair, pair[::-1]):
            if name not in held and name.endswith(f".{one}") and (found := name.removesuffix(one) + other) in held:
                return found
    return name


def _nothing_else() -> Any:
    """A way to read common.pt that does not."""
    from megatron.core.dist_checkpointing.strategies.base import LoadCommonStrategy

    class Nothing(LoadCommonStrategy):
        def load_common(self, checkpoint_dir: Any) -> dict[str, Any]:
            return {}

        def load_sharded_objects(self, sharded_objects_state_dict: Any, checkpoint_dir: Any) -> dict[str, Any]:
            return {}

        def check_backend_compatibility(self, loaded_backend: Any) -> None:
            return None

        def check_version_compatibility(self, loaded_version: Any) -> None:
            return None

        @property
        def can_handle_sharded_objects(self) -> bool:
            return False

    return Nothing()
