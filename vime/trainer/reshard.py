"""Weights and optimizer state that one layout saved, for a rank of another. Only moves elements, so it is exact.

Every parameter has one name in the whole model (`families.Entry`) and a rule that says how tensor ranks cut it. What a
checkpoint holds of it is therefore a shard of that; the shards are put together by the rule and cut again for the rank that
loads. Optimizer state that ranks share lies in runs of a shard's elements, which are joined first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from vime.convert.cut import Cut, Share
from vime.convert.families import Entry, entries
from vime.convert.rules import Whole
from vime.convert.shape import ModelShape
from vime.errors import VimeError
from vime.trainer.checkpoint import Place, Saved

# A critic's layers are a policy's under this name; its head is no part of a policy.
_TRUNK = "trunk."


def entries_of(names: list[str], shape: ModelShape, cut: Cut) -> dict[str, Entry]:
    """Name in this rank's model -> which parameter of the whole model it is."""
    known = {local: entry for entry in entries(shape) if (local := cut.local_name(entry, shape)) is not None}
    return {name: known.get(bare := name.removeprefix(_TRUNK)) or Entry(bare, Whole(bare)) for name in names}


@dataclass(frozen=True)
class Run:
    """Optimizer state of elements [first, first + n) of a shard: tensors [n] by name, and numbers that have no elements."""

    first: int
    tensors: dict[str, torch.Tensor]
    numbers: dict[str, Any]

    def to_plain(self) -> dict[str, Any]:
        return {"first": self.first, "tensors": self.tensors, "numbers": self.numbers}


def weights(saved: Saved, wanted: dict[str, Entry], shape: ModelShape, cut: Cut) -> Iterator[tuple[str, torch.Tensor]]:
    """(local name, this rank's shard) of each weight that is wanted."""
    for name, entry in wanted.items():
        parts, share = [holders[0].part for holders in _holders(saved, entry, shape)], cut.share(entry)
        if len(parts) == share.size:  # the same cut: the others' files are not needed
            yield name, saved.read(f"model_{parts[share.rank]}.pt")[entry.name]
        else:
            shards = [saved.read(f"model_{part}.pt")[entry.name] for part in parts]
            yield name, _recut(entry, shards, share, shape)


Wanted = dict[str, tuple[Entry, int, int]]


def own_optimizer(saved: Saved, wanted: Wanted, place: Place) -> Iterator[tuple[str, Run]]:
    """(local name, run) for each (entry, first, end), where the very layout saved that loads."""
    found = saved.read(place.optimizer_file)
    for name, (entry, _, _) in wanted.items():
        if (run := found.get(entry.name)) is not None:
            yield name, Run(**run)


def optimizer(saved: Saved, wanted: Wanted, shape: ModelShape, cut: Cut) -> Iterator[tuple[str, Run]]:
    """(local name, run) for each (entry, first, end): what of that shard of this rank's is wanted. Those without state are left
    out."""
    for name, (entry, first, end) in wanted.items():
        found = [_joined(saved, entry, holders) for holders in _holders(saved, entry, shape)]
        joined = [one for one in found if one is not None]
        if not joined:
            continue
        tensors = {}
        for kind in joined[0][0]:
            shard = _recut(entry, [tensors[kind] for tensors, _ in joined], cut.share(entry), shape)
            tensors[kind] = shard.reshape(-1)[first:end].clone()
        yield name, Run(first, tensors, dict(joined[0][1]))


def _holders(saved: Saved, entry: Entry, shape: ModelShape) -> list[list[Place]]:
    """The ranks that saved `entry`, by the share of it that they held. Of an embedding on two stages, those of the first."""
    by_share: dict[int, list[Place]] = {}
    held = [place for place in saved.places if place.cut.local_name(entry, shape) is not None]
    for place in held:
        if place.cut.stage == held[0].cut.stage:
            by_share.setdefault(place.cut.share(entry).rank, []).append(place)
    return [by_share[share] for share in sorted(by_share)]


def _joined(saved: Saved, entry: Entry, holders: list[Place]) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
    """State of one whole shard, in its shape, from the runs that its holders saved; None when there is none."""
    size = saved.read(f"model_{holders[0].part}.pt")[entry.name].shape
    runs: dict[int, dict[str, Any]] = {}
    for file in dict.fromkeys(place.optimizer_file for place in holders):
        if (run := saved.read(file).get(entry.name)) is not None and run["tensors"]:
            runs.setdefault(run["first"], run)
    if not runs:
        return None
    ordered = [runs[first] for first in sorted(runs)]
    kinds = ordered[0]["tensors"]
    flat = {kind: torch.cat([run["tensors"][kind].reshape(-1) for run in ordered]) for kind in kinds}
    if any(tensor.numel() != math.prod(size) for tensor in flat.values()):
        raise VimeError(f"the optimizer state of {entry.name} is incomplete", where=str(saved.path))
    return {kind: tensor.view(size) for kind, tensor in flat.items()}, ordered[0]["numbers"]


def _recut(entry: Entry, shards: list[torch.Tensor], share: Share, shape: ModelShape) -> torch.Tensor:
    if entry.rule.cut is None:
        return shards[0]
    if len(shards) == share.size:
        return shards[share.rank]
    whole = dict(zip(entry.rule.sources, entry.rule.merge(shards, shape), strict=True))
    return entry.rule.shard(whole.__getitem__, shape, share.rank, share.size)
