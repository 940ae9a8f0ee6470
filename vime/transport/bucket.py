"""Weights as buckets: bounded runs of tensors packed into bytes, with a checksum each. Pure; no medium here."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from vime.errors import EngineError

#: Tensors start at multiples of this, so that views of any type are aligned.
_ALIGNMENT = 64


@dataclass(frozen=True)
class TensorMeta:
    """A tensor inside a bucket: Hugging Face name, torch type name, whole shape, first byte."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class BucketMeta:
    """Bytes of one bucket, their CRC-32, what they hold, and the file that carries them (for media with files)."""

    nbytes: int
    checksum: int
    tensors: tuple[TensorMeta, ...]
    path: str = ""


@dataclass(frozen=True)
class Offer:
    """What the trainer is about to send: one version of all weights. `kind` is the medium.

    `address` (host, port) and `receivers` are for media that connect: every worker of every engine is one receiver.
    `flush_cache` says whether the engines drop what they computed with older weights; it is the policy's decision, and recorded.
    With `prefetch` they receive while they generate, into memory of their own, and pause only to load.
    """

    version: str
    kind: str
    buckets: tuple[BucketMeta, ...]
    address: tuple[str, int] | None = None
    receivers: int = 0
    flush_cache: bool = True
    prefetch: bool = False

    @property
    def nbytes(self) -> int:
        return sum(bucket.nbytes for bucket in self.buckets)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Offer:
        return cls(
            **{
                **state,
                "buckets": tuple(bucket_from_dict(one) for one in state["buckets"]),
                "address": tuple(state["address"]) if state["address"] else None,
            }
        )


def bucket_from_dict(state: Mapping[str, Any]) -> BucketMeta:
    tensors = tuple(TensorMeta(t["name"], t["dtype"], tuple(t["shape"]), t["offset"]) for t in state["tensors"])
    return BucketMeta(state["nbytes"], state["checksum"], tensors, state["path"])


@dataclass
class Bucket:
    """`data` is a contiguous uint8 tensor on the CPU."""

    data: torch.Tensor
    tensors: tuple[TensorMeta, ...] = field(default_factory=tuple)

    def meta(self, path: str = "") -> BucketMeta:
        return BucketMeta(self.data.numel(), checksum(self.data), self.tensors, path)


def pack(weights: Iterable[tuple[str, torch.Tensor]], limit: int) -> Iterator[Bucket]:
    """Buckets of at most `limit` bytes, in order; a tensor larger than that has a bucket of its own. Each holds a copy."""
    held: list[tuple[str, torch.Tensor]] = []
    size = 0
    for name, tensor in weights:
        needed = aligned(tensor.nbytes)
        if held and size + needed > limit:
            yield _bucket(held, size)
            held, size = [], 0
        # The caller may overwrite the tensor when it yields the next one.
        held.append((name, tensor.detach().to("cpu", copy=True).contiguous()))
        size += needed
    if held:
        yield _bucket(held, size)


def unpack(data: torch.Tensor, meta: BucketMeta) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, view into `data`) of each tensor. Raises EngineError when the bytes are not those that were sent."""
    if data.numel() != meta.nbytes or checksum(data) != meta.checksum:
        first = meta.tensors[0].name if meta.tensors else "nothing"
        raise EngineError(f"weights arrived damaged: the bucket that starts with {first} has another checksum")
    yield from views(data, meta)


def views(data: torch.Tensor, meta: BucketMeta) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, view into `data`) of each tensor, on whatever device, unverified."""
    for tensor in meta.tensors:
        dtype = getattr(torch, tensor.dtype)
        count = 1
        for extent in tensor.shape:
            count *= extent
        flat = data[tensor.offset : tensor.offset + count * dtype.itemsize]
        yield tensor.name, flat.view(dtype).reshape(tensor.shape)


def checksum(data: torch.Tensor) -> int:
    """CRC-32 of a contiguous uint8 tensor on the CPU."""
    return zlib.crc32(data.numpy())


def _bucket(held: list[tuple[str, torch.Tensor]], size: int) -> Bucket:
    data = torch.zeros(size, dtype=torch.uint8)
    metas, offset = [], 0
    for name, tensor in held:
        data[offset : offset + tensor.nbytes] = tensor.reshape(-1).view(torch.uint8)
        metas.append(TensorMeta(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), offset))
        offset += aligned(tensor.nbytes)
    return Bucket(data, tuple(metas))


def aligned(nbytes: int) -> int:
    """Bytes that a tensor of `nbytes` takes in a bucket."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
