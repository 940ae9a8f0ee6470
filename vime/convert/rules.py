"""Layout rules: how one Megatron parameter is made of Hugging Face tensors, and back, under tensor parallelism.

A rule is a value. `shard` reads only the rows or columns that one tensor-parallel rank holds; `merge` takes every
rank's shard in rank order and gives whole tensors under their Hugging Face names. `merge` undoes `shard` exactly: both
only move elements. Patterns carry `{i}` for the layer and `{e}` for the expert.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    import torch

    from vime.convert.shape import ModelShape

# Gives something that is sliced like the named tensor: a tensor, or a safetensors slice that reads only what is taken.
Read = Callable[[str], Any]


class Rule(Protocol):
    @property
    def sources(self) -> tuple[str, ...]:
        """Hugging Face name patterns, in the order in which they are exported."""
        ...

    @property
    def cut(self) -> int | None:
        """Dimension of the Megatron parameter that is divided over tensor-parallel ranks; None: each holds all of it."""
        ...

    def shard(self, read: Read, shape: ModelShape, rank: int, size: int) -> torch.Tensor: ...

    def merge(self, shards: Sequence[torch.Tensor], shape: ModelShape) -> tuple[torch.Tensor, ...]: ...


def _block(total: int, rank: int, size: int) -> slice:
    width = total // size
    return slice(rank * width, (rank + 1) * width)


def _length(source: Any, dim: int) -> int:
    return (source.get_shape() if hasattr(source, "get_shape") else source.shape)[dim]


def _cat(tensors: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
    import torch

    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors), dim)


@dataclass(frozen=True)
class _OfOne:
    """A rule for a parameter that is made of one tensor."""

    source: str

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,)


@dataclass(frozen=True)
class Whole(_OfOne):
    """Every rank holds the whole tensor."""

    cut: ClassVar[int | None] = None

    def shard(self, read: Read, shape: ModelShape, rank: int, size: int) -> torch.Tensor:
        return read(self.source)[:]

    def merge(self, shards: Sequence[torch.Tensor], shape: ModelShape) -> tuple[torch.Tensor, ...]:
        return (shards[0],)


@dataclass(frozen=True)
class _Divided(_OfOne):
    """Equal blocks along the dimension `cut`."""

    cut: ClassVar[int]

    def shard(self, read: Read, shape: ModelShape, rank: int, size: int) -> torch.Tensor:
        source = read(self.source)
        return source[(slice(None),) * self.cut + (_block(_length(source, self.cut), rank, size),)]

    def merge(self, shards: Sequence[torch.Tensor], shape: ModelShape) -> tuple[torch.Tensor, ...]:
        return (_cat(shards, self.cut),)


class Rows(_Divided):
    """Cut along the output features: the weight of a column-parallel layer."""

    cut = 0


class Columns(_Divided):
    """Cut along the input features: the weight of a row-parallel layer."""

    cut = 1


@dataclass(frozen=True)
class Vocabulary(_OfOne):
    """Cut along the vocabulary, which Megatron pads with zero rows to a multiple of the ranks."""

    cut: ClassVar[int | None] = 0

    def shard(self, read: Read, shape: ModelShape, rank: int, size: int) -> torch.Tensor:
        import torch

        rows = _block(shape.padded_vocab(size), rank, size)
        held = read(self.source)[min(rows.start, shape.vocab) : min(rows.stop, shape.vocab)]
        missing = rows.stop - rows.start - held.shape[0]
        return torch.nn.functional.pad(held, (0, 0, 0, missing)) if missing else held

    def merge(self, shards: Sequence[torch.Tensor], shape: ModelShape) -> tuple[torch.Tensor, ...]:
        return (_cat(shards)[: shape.vocab],)


@dataclass(frozen=True)
class QueryKeyValue:
    """Three projections in one, interleaved by key/value group: [q of group 0, k 0, v 0, q of group 1, ...]. Weight or bias."""

    query: str
    key: str
    value: str
    cut: ClassVar[int | None] = 0

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.query, self.key, self.value)

    def shard(self, read: Read, shape: ModelShape, rank: int, size: int) -> torch.Tensor:
        groups = shape.groups // size
        parts = []
        for name, heads in ((self.query, shape.heads), (self.key, shape.groups), (self.value, shape.groups)):
            rows = read(name)[_block(heads * shape.head_dim, rank, size)]
            parts.append(rows.reshape(groups, -1, *rows.shape[1:]))
        return _cat(parts, 1).flatten(0, 1)

    def merge(self, shards: Sequence[torch.Tensor], shape: ModelShape) -> tuple[torch.Tensor, ...]:
        fused = _cat(shards)
        by_group = fused.reshape(shape.groups, -1, *fused.shape[1:])
        width = shape.heads // shape.groups * shape.head_dim
        return tuple(part.flatten(0, 1) for part in by_group.split([width, shape.head_dim, shape.head_dim], 1))


@dataclass(frozen=True)
class GateUp:
    """Gate and up projection in one: each rank holds its rows of the gate, then its rows of the up projection."""

    gate: str
    up: str
    cut: ClassVar[int | None] = 0

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.gate, self.up)

    def shard(self, read: Read, shape: ModelShape, rank: int, size: int) -> torch.Tensor:
        parts = [read(name) for name in self.sources]
        return _cat([part[_block(_length(part, 0), rank, size)] for part in parts])

    def merge(self, shards: Sequence[torch.Tensor], shape: ModelShape) -> tuple[torch.Tensor, ...]:
        halves = [shard.chunk(2) for shard in shards]
        return _cat([gate for gate, _ in halves]), _cat([up for _, up in halves])


@dataclass(frozen=True)
class FusedGateUp(_OfOne):
    """The same of a tensor that holds the gate above the up projection."""

    cut: ClassVar[int | None] = 0

    def shard(self, read: Read, shape: ModelShape, rank: int, size: int) -> torch.Tensor:
        source = read(self.source)
        width = _length(source, 0) // 2
        rows = _block(width, rank, size)
        return _cat([source[rows], source[width + rows.start : width + rows.stop]])

    def merge(self, shards: Sequence[torch.Tensor], shape: ModelShape) -> tuple[torch.Tensor, ...]:
        halves = [shard.chunk(2) for shard in shards]
        return (_cat([gate for gate, _ in halves] + [up for _, up in halves]),)
