"""Hugging Face checkpoints: read into a Megatron model shard by shard, stream out of one, write to a directory."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from vime.convert.cut import Cut
from vime.convert.families import Entry, entries
from vime.convert.fp8 import SUFFIX, Blocks, dequantise
from vime.convert.shape import ModelShape
from vime.errors import VimeError

_INDEX = "model.safetensors.index.json"
# What a directory needs beside the weights for an engine to load it; weights and other formats stay behind.
_COMPANIONS = ("*.json", "*.txt", "*.model", "*.jinja")
_LAYER = re.compile(r"model\.layers\.(\d+)\.")

WHOLE = Cut()


class HfReader:
    """Named tensors of a directory of safetensors. A slice reads only its bytes; those stored in FP8 `blocks` come in fp32."""

    def __init__(self, directory: str | Path, blocks: Blocks | None = None) -> None:
        from safetensors import SafetensorError, safe_open

        self.directory, self._blocks = Path(directory), blocks
        files = sorted(self.directory.glob("*.safetensors"))
        if not files:
            raise VimeError("no *.safetensors files", where=str(directory), hint="give a Hugging Face checkpoint")
        self._stack = contextlib.ExitStack()
        self._holder: dict[str, Any] = {}
        for file in files:
            try:
                handle = self._stack.enter_context(safe_open(str(file), framework="pt"))
            except (SafetensorError, OSError) as error:
                raise VimeError(
                    f"unreadable weights: {error}", where=str(file), hint="the file is damaged or incomplete"
                ) from error
            self._holder.update(dict.fromkeys(handle.keys(), handle))
        index = self.directory / _INDEX
        if index.exists():
            missing = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"]) - set(self._holder)
            if missing:
                raise VimeError(
                    f"{len(missing)} tensors of the index are missing, first {min(missing)}", where=str(index)
                )

    @property
    def names(self) -> set[str]:
        """Of weights; the factors of quantised ones are no weights."""
        return {name for name in self._holder if not name.endswith(SUFFIX)}

    def __call__(self, name: str) -> Any:
        if name not in self._holder:
            raise VimeError(f"the checkpoint has no tensor {name!r}", where=str(self.directory))
        scale = name + SUFFIX
        if scale not in self._holder:
            return self._holder[name].get_slice(name)
        stored, factors = self._holder[name].get_tensor(name), self._holder[scale].get_tensor(scale)
        return dequantise(stored, factors, self._blocks or Blocks())

    def of_entry(self, entry: Entry, pattern: str) -> Any:
        """The slice that a name pattern of the entry's rule means."""
        return self(entry.fill(pattern))

    def close(self) -> None:
        self._stack.close()


def named_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What a checkpoint holds of `model`: its parameters and its persistent buffers (the router's correction biases)."""
    found: dict[str, torch.Tensor] = dict(model.named_parameters())
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(prefix, recurse=False):
            if name.rpartition(".")[2] not in module._non_persistent_buffers_set:
                found[name] = buffer
    return found


@torch.no_grad()
def load_hf(
    model: torch.nn.Module, directory: str | Path, shape: ModelShape, cut: Cut = WHOLE, blocks: Blocks | None = None
) -> None:
    """Fill `model`, the part of one rank, from a directory (perhaps stored in FP8 `blocks`), reading only that part.

    Raises VimeError for a tensor that is missing, left over, or of another shape.
    """
    reader = HfReader(directory, blocks)
    weights = named_weights(model)
    used: set[str] = set()
    try:
        for entry in entries(shape):
            used.update(entry.sources)
            name = cut.local_name(entry, shape)
            if name is None:
                continue
            share = cut.share(entry)
            value = entry.rule.shard(partial(reader.of_entry, entry), shape, share.rank, share.size)
            held = weights.pop(name, None)
            if held is None or held.shape != value.shape:
                found = "no such parameter" if held is None else f"shape {tuple(held.shape)}"
                raise VimeError(
                    f"{name}: the model has {found}, the checkpoint gives {tuple(value.shape)}", where=str(directory)
                )
            held.copy_(value)
        left = {name for name in reader.names - used if not _carries_nothing(name, shape)}
        if weights or left:
            raise VimeError(
                f"checkpoint and model differ: not filled {sorted(weights)[:3]}, not used {sorted(left)[:3]}",
                where=str(directory),
            )
    finally:
        reader.close()


def _carries_nothing(name: str, shape: ModelShape) -> bool:
    """Tied heads and rotary tables, which some exporters write, and layers past the last: multi-token prediction, for drafts."""
    layer = _LAYER.match(name)
    return (
        name.endswith("rotary_emb.inv_freq")
        or (shape.tied and name == "lm_head.weight")
        or (layer is not None and int(layer[1]) >= shape.layers)
    )


@dataclass(frozen=True)
class Groups:
    """The ranks that hold the other shares of this rank's tensors; of experts' tensors."""

    tensor: dist.ProcessGroup | None = None
    expert_tensor: dist.ProcessGroup | None = None


@torch.no_grad()
def iter_hf_weights(
    model: torch.nn.Module,
    shape: ModelShape,
    cut: Cut = WHOLE,
    groups: Groups = Groups(),
    dtype: torch.dtype | None = None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (Hugging Face name, whole contiguous tensor) for each weight of the model, in export order.

    Where tensors are cut, every rank of the group must exhaust the iterator; where experts or layers lie on other ranks,
    every rank of the world. All get the same. A yielded tensor may share memory with the parameter: copy before keeping it
    past a step.
    """
    weights = named_weights(model)
    owners = _owners(model, weights, shape, cut) if cut.spread else {}
    for entry in entries(shape):
        name, group = cut.local_name(entry, shape), groups.tensor if entry.expert is None else groups.expert_tensor
        whole: tuple[torch.Tensor, ...] = ()
        if name is not None:
            own = weights[name].detach()
            shards = [own] * cut.share(entry).size
            if len(shards) > 1 and entry.rule.cut is not None:
                shards = [torch.empty_like(own) for _ in shards]
                dist.all_gather(shards, own.contiguous(), group=group)
            whole = tuple(tensor.contiguous() for tensor in entry.rule.merge(shards, shape))
        if owners:
            owner, facts = owners[entry.name]
            if not whole:
                device = next(iter(weights.values())).device
                whole = tuple(torch.empty(size, dtype=kind, device=device) for size, kind in facts)
            for tensor in whole:
                dist.broadcast(tensor, owner)
        for source, tensor in zip(entry.sources, whole, strict=True):
            # Biases that choose experts are kept in fp32 everywhere.
            yield source, tensor if dtype is None or _is_bias(entry.name) else tensor.to(dtype)


def _is_bias(name: str) -> bool:
    return name.endswith("router.expert_bias")


_Owner = tuple[int, list[tuple[torch.Size, torch.dtype]]]


#: What `_owners` found: names and sizes of a model do not change, and every update exports all of it.
_found: WeakKeyDictionary[torch.nn.Module, dict[tuple[ModelShape, Cut], dict[str, _Owner]]] = WeakKeyDictionary()


def _owners(model: torch.nn.Module, weights: dict[str, torch.Tensor], shape: ModelShape, cut: Cut) -> dict[str, _Owner]:
    """By entry: the first rank of the world that holds it, and sizes and types of its whole tensors. A collective, the first time for a model:
    all ranks export theirs for the first time together."""
    known = _found.setdefault(model, {})
    if (shape, cut) not in known:
        known[shape, cut] = _gather_owners(weights, shape, cut)
    return known[shape, cut]


def _gather_owners(weights: dict[str, torch.Tensor], shape: ModelShape, cut: Cut) -> dict[str, _Owner]:
    mine = {}
    for entry in entries(shape):
        if (name := cut.local_name(entry, shape)) is not None:
            shards = [torch.empty_like(weights[name], device="meta")] * cut.share(entry).size
            mine[entry.name] = [(tensor.shape, tensor.dtype) for tensor in entry.rule.merge(shards, shape)]
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    found: dict[str, _Owner] = {}
    for rank, names in enumerate(every):
        for name, facts in names.items():
            found.setdefault(name, (rank, facts))
    return found


def save_hf(
    weights: Iterable[tuple[str, torch.Tensor]],
    directory: str | Path,
    template: str | Path,
    shard_bytes: int = 4 << 30,
) -> None:
    """Write `weights` as safetensors with index, beside the configuration and tokenizer of `template`.

    Written to a sibling directory that is renamed when complete; an older `directory` is replaced. At most
    `shard_bytes` of weights are held in memory.
    """
    target = Path(directory)
    staging = target.with_name(f".{target.name}.tmp-{os.getpid()}")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    for pattern in _COMPANIONS:
        for file in Path(template).glob(pattern):
            if file.name != _INDEX:
                shutil.copyfile(file, staging / file.name)
    weight_map: dict[str, str] = {}
    total = part = 0
    for part, shard in enumerate(_by_size(weights, shard_bytes), 1):
        total += _write_shard(staging, part, shard, weight_map)
    if part == 1:
        (staging / _shard_name(1)).rename(staging / "model.safetensors")
    else:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (staging / _INDEX).write_text(json.dumps(index, indent=2, sort_keys=True), encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)
    staging.rename(target)


def _shard_name(part: int) -> str:
    return f"model-{part:05d}.safetensors"


def _write_shard(folder: Path, part: int, shard: dict[str, torch.Tensor], weight_map: dict[str, str]) -> int:
    from safetensors.torch import save_file

    save_file(shard, str(folder / _shard_name(part)), metadata={"format": "pt"})
    weight_map.update(dict.fromkeys(shard, _shard_name(part)))
    return sum(tensor.nbytes for tensor in shard.values())


def _by_size(weights: Iterable[tuple[str, torch.Tensor]], limit: int) -> Iterator[dict[str, torch.Tensor]]:
    shard: dict[str, torch.Tensor] = {}
    held = 0
    for name, tensor in weights:
        if shard and held + tensor.nbytes > limit:
            yield shard
            shard, held = {}, 0
        # A clone: the tensor may be a view into a parameter, and safetensors refuses tensors that share storage.
        shard[name] = tensor.detach().cpu().clone()
        held += tensor.nbytes
    if shard:
        yield shard
