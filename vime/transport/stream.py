"""Weights that stay on their devices: what the buckets hold is laid out once, then they are filled one after another.

Shared by the media that move device memory (`ipc`, `nccl`). Beside the bytes there is a store, by which both sides tell each other how
far they are, and that something failed; `gloo` has that too.
"""

from __future__ import annotations

import contextlib
import datetime
import socket
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
import torch.distributed as dist

from vime.errors import EngineError
from vime.transport.bucket import BucketMeta, Offer, TensorMeta, aligned, views

_FAILED = "failed"
_QUICK_POLLS = 200
_QUICK_SECONDS, _SLOW_SECONDS = 1e-4, 2e-3


def layout(weights: Iterable[tuple[str, torch.Tensor]], limit: int) -> tuple[BucketMeta, ...]:
    """Buckets of at most `limit` bytes for tensors of these names, types and shapes, in order. A larger tensor has one of its own.

    They have no checksum: it follows with the bytes.
    """
    buckets: list[BucketMeta] = []
    held: list[TensorMeta] = []
    size = 0

    def close() -> None:
        if held:
            buckets.append(BucketMeta(size, 0, tuple(held)))
            held.clear()

    for name, tensor in weights:
        needed = aligned(tensor.nbytes)
        if size + needed > limit:
            close()
        if not held:
            size = 0
        held.append(TensorMeta(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), size))
        size += needed
    close()
    return tuple(buckets)


def fill(data: torch.Tensor, meta: BucketMeta, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    """Copy the next tensors of `weights` into `data` uint8 [meta.nbytes] as `meta` says. Raises EngineError when they are others."""
    targets, sources = [], []
    for tensor, (name, target) in zip(meta.tensors, views(data, meta), strict=True):
        found, source = next(weights, ("nothing", target))
        if found != name or source.shape != target.shape or source.dtype != target.dtype:
            raise EngineError(f"the weights changed their layout: {tensor.name} was announced, {found} came")
        targets.append(target)
        sources.append(source)
    torch._foreach_copy_(targets, sources)


def digest(data: torch.Tensor) -> torch.Tensor:
    """Eight wrapping 64-bit sums over every eighth word of uint8 [n], n a multiple of 64: int64 [8], made where the data is.

    A flipped bit, a lost or doubled run of bytes and another tensor's bytes change it; the reading costs what one pass over memory costs.
    """
    return data.view(torch.int64).view(-1, 8).sum(0)


def fingerprint(data: torch.Tensor) -> int:
    """`digest` as one number; waits for the device."""
    return zlib.crc32(digest(data).cpu().numpy().tobytes())


def await_keys(store: dist.Store, keys: Sequence[str], deadline: float, what: str) -> None:
    """Until the store has all of `keys`. Raises EngineError when the other side reported a failure or at `deadline` (monotonic seconds)."""
    wait_until(lambda: bool(store.check(list(keys))), store, deadline, what)


def wait_until(done: Callable[[], bool], store: dist.Store, deadline: float, what: str) -> None:
    """Poll `done`. Raises EngineError when a failure was reported in `store`, or at `deadline` (monotonic seconds)."""
    polls = 0
    while not done():
        polls += 1
        quick = polls < _QUICK_POLLS
        time.sleep(_QUICK_SECONDS if quick else _SLOW_SECONDS)
        if not quick or polls % 50 == 0:
            if store.check([_FAILED]):
                raise EngineError(f"the weight update was given up: {store.get(_FAILED).decode(errors='replace')}")
            if time.monotonic() > deadline:
                raise EngineError(f"{what} in time")


def report_failure(address: tuple[str, int], reason: str, timeout: float = 5.0) -> None:
    """Tell whoever waits at the store of an update that it is over. Never raises: the store may be gone with its owner."""
    with contextlib.suppress(Exception):
        connect(address, timeout).set(_FAILED, reason[:400])


def announce_sent(store: dist.Store, version: str) -> None:
    store.set(f"sent/{version}", "")


def await_sent(offer: Offer, timeout: float) -> None:
    """Until the bytes of `offer` are on their way out. Raises EngineError when a failure was reported or after `timeout` seconds."""
    assert offer.address is not None
    store = connect(offer.address, timeout)
    await_keys(store, [f"sent/{offer.version}"], time.monotonic() + timeout, "the trainer did not send its weights")


class Endpoint:
    """Where the sides of an update meet: a store on the sender's host, held open from before its address is told."""

    def __init__(self, host: str, timeout: float) -> None:
        listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.address = (host, int(listener.getsockname()[1]))
        self.store = dist.TCPStore(
            *self.address,
            None,
            is_master=True,
            wait_for_workers=False,
            timeout=datetime.timedelta(seconds=timeout),
            master_listen_fd=listener.detach(),
        )


def connect(address: tuple[str, int], timeout: float) -> dist.Store:
    """The store of an `Endpoint`, from another process. Raises EngineError at once when nobody listens there: it is open before its address is
    told, so its owner is gone. (The store's own client would go on trying for twice its timeout, and print stack traces meanwhile.)"""
    try:
        socket.create_connection(address, timeout).close()
    except OSError as error:
        raise EngineError(
            f"nobody sends weights at {address[0]}:{address[1]} any more: {error.strerror or error}"
        ) from error
    return dist.TCPStore(*address, None, is_master=False, timeout=datetime.timedelta(seconds=timeout))
