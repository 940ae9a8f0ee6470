"""Hugging Face checkpoints: read into a Megatron model shard by shard, stream out of one, write to a directory."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from vime.convert.config import ModelShape
from vime.convert.families import FAMILIES
from vime.errors import VimeError

_INDEX = "model.safetensors.index.json"
# What a directory needs beside the weights for an engine to load it; weights and other formats stay behind.
_COMPANIONS = ("*.json", "*.txt", "*.model", "*.jinja")


class HfReader:
    """Named tensors of a directory of safetensors. Files are opened when first needed; a slice reads only its bytes."""

    def __init__(self, directory: str | Path) -> None:
        from safetensors import SafetensorError, safe_open

        self.directory = Path(directory)
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
            missing = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"]) - self.names
            if missing:
                raise VimeError(
                    f"{len(missing)} tensors of the index are missing, first {min(missing)}", where=str(index)
                )

    @property
    def names(self) -> set[str]:
        return set(self._holder)

    def __call__(self, name: str) -> Any:
        if name not in self._holder:
            raise VimeError(f"the checkpoint has no tensor {name!r}", where=str(self.directory))
        return self._holder[name].get_slice(name)

    def of_layer(self, layer: int, pattern: str) -> Any:
        """The slice that a rule's name pattern means in this layer."""
        return self(pattern.format(i=layer))

    def close(self) -> None:
        self._stack.close()


@torch.no_grad()
def load_hf(model: torch.nn.Module, directory: str | Path, shape: ModelShape, rank: int = 0, size: int = 1) -> None:
    """Fill `model` with tensor-parallel shard `rank` of `size` from a directory, reading only that shard.

    Raises VimeError for a tensor that is missing, left over, or of another shape.
    """
    reader = HfReader(directory)
    parameters = dict(model.named_parameters())
    used: set[str] = set()
    try:
        for name, rule, layer in FAMILIES[shape.model_type].rules(shape):
            used.update(source.format(i=layer) for source in rule.sources)
            value = rule.shard(partial(reader.of_layer, layer), shape, rank, size)
            parameter = parameters.pop(name, None)
            if parameter is None or parameter.shape != value.shape:
                held = "no such parameter" if parameter is None else f"shape {tuple(parameter.shape)}"
                raise VimeError(
                    f"{name}: the model has {held}, the checkpoint gives {tuple(value.shape)}", where=str(directory)
                )
            parameter.copy_(value)
        left = reader.names - used
        # Some exporters write the tied head and the rotary table, which carry nothing.
        left = {n for n in left if not n.endswith("rotary_emb.inv_freq") and not (shape.tied and n == "lm_head.weight")}
        if parameters or left:
            raise VimeError(
                f"checkpoint and model differ: not filled {sorted(parameters)[:3]}, not used {sorted(left)[:3]}",
                where=str(directory),
            )
    finally:
        reader.close()


@torch.no_grad()
def iter_hf_weights(
    model: torch.nn.Module,
    shape: ModelShape,
    group: dist.ProcessGroup | None = None,
    dtype: torch.dtype | None = None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (Hugging Face name, whole contiguous tensor) for each weight of `model`, in export order.

    With a tensor-parallel `group` of several ranks each item is gathered, so every rank must exhaust the iterator;
    all ranks get the same. A yielded tensor may share memory with the parameter: copy before keeping it past a step.
    """
    parameters = dict(model.named_parameters())
    size = group.size() if group is not None else 1
    for name, rule, layer in FAMILIES[shape.model_type].rules(shape):
        own = parameters[name].detach()
        shards = [own]
        if size > 1:
            shards = [torch.empty_like(own) for _ in range(size)]
            dist.all_gather(shards, own.contiguous(), group=group)
        for source, tensor in zip(rule.sources, rule.merge(shards, shape), strict=True):
            yield source.format(i=layer), (tensor if dtype is None else tensor.to(dtype)).contiguous()


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
