"""Weights by NCCL broadcast: trainer rank 0 to every worker of every engine on other GPUs, bucket after bucket, without a stop between.

The group outlives an update, since making one takes a tenth of a second and more. It is made anew when engines were replaced, and after
any failure. A peer that dies in the middle leaves the others waiting on the device: nothing here waits there without a deadline, and a
failure that somebody reports in the store ends the wait at once. Sender and receiver run this same file.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from vime.errors import EngineError
from vime.transport.bucket import BucketMeta, Offer
from vime.transport.stream import Endpoint, announce_sent, connect, digest, fill, wait_until

_SENDER = 0
SLOTS = 2
#: torch's watchdog would end the whole process for a broadcast that hangs; here deadlines end the broadcast.
_NO_WATCHDOG = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}


#: Both ends of a communicator must share memory in the same way, or they wait for each other without end.
_AGREED = ("NCCL_CUMEM_ENABLE",)


def _settings() -> str:
    return ", ".join(f"{name}={os.environ.get(name, 'unset')}" for name in _AGREED)


class Group:
    """An NCCL communicator over trainer rank 0 and all receivers. `close` it on every side, or the device memory stays."""

    def __init__(self, store: dist.Store, rank: int, size: int, device: torch.device, timeout: float) -> None:
        self.store, self.rank, self.size, self.device, self.timeout = store, rank, size, device, timeout
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = datetime.timedelta(seconds=timeout)
        before = {name: os.environ.get(name) for name in _NO_WATCHDOG}
        os.environ.update(_NO_WATCHDOG)
        try:
            self._group = dist.ProcessGroupNCCL(dist.PrefixStore("weights", store), rank, size, options)
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    def broadcast(self, data: torch.Tensor) -> Any:
        """Start sending (or receiving) `data`; the work's `wait` orders the current stream after it."""
        options = dist.BroadcastOptions()
        options.rootRank = _SENDER
        options.rootTensor = 0
        return self._group.broadcast([data], options)

    def finish(self, works: Iterable[Any], deadline: float) -> None:
        """Until all `works` are done on the device. Raises EngineError at the deadline or when a failure was reported."""
        pending = list(works)
        wait_until(
            lambda: all(work.is_completed() for work in pending), self.store, deadline, "a weight broadcast did not end"
        )

    def close(self) -> None:
        """Free the communicator, without waiting for the other side: it may be gone."""
        group, self._group = self._group, None
        if group is not None:
            with contextlib.suppress(Exception):
                getattr(group, "abort", group.shutdown)()


class Sender:
    """Trainer rank 0. `address` names the group: receivers that know it already are members."""

    def __init__(self, host: str, receivers: int, device: torch.device, timeout: float) -> None:
        self.receivers, self._device, self._timeout = receivers, device, timeout
        self._endpoint = Endpoint(host, timeout)
        self._endpoint.store.set("settings", _settings())
        self.address = self._endpoint.address
        self._group: Group | None = None

    def send(self, offer: Offer, weights: Iterable[tuple[str, torch.Tensor]]) -> int:
        """Broadcast the buckets of `offer`; blocks until every receiver has them. Returns the bytes of device memory it took."""
        deadline = time.monotonic() + self._timeout
        store = self._endpoint.store
        asked = [f"asked/{offer.version}/{r}" for r in range(self.receivers)]
        wait_until(lambda: bool(store.check(asked)), store, deadline, "not every engine worker asked for its weights")
        if self._group is None:
            self._group = Group(store, _SENDER, self.receivers + 1, self._device, self._timeout)
        size = max((meta.nbytes for meta in offer.buckets), default=0)
        slots = [
            torch.empty(size, dtype=torch.uint8, device=self._device) for _ in range(min(SLOTS, len(offer.buckets)))
        ]
        sums = torch.zeros(len(offer.buckets), 8, dtype=torch.int64, device=self._device)
        stream = iter(weights)
        works: list[Any] = []
        for number, meta in enumerate(offer.buckets):
            if number >= SLOTS:
                works[
                    number - SLOTS
                ].wait()  # on the device: the copies below wait for the broadcast, this process does not
            data = slots[number % SLOTS][: meta.nbytes]
            fill(data, meta, stream)
            sums[number] = digest(data)
            works.append(self._group.broadcast(data))
        works.append(self._group.broadcast(sums))
        self._group.finish(works, deadline)
        announce_sent(store, offer.version)
        return len(slots) * size

    def close(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None


class Receiver:
    """One engine worker. Keeps the group between updates."""

    def __init__(self, device: torch.device, timeout: float) -> None:
        self._device, self._timeout = device, timeout
        self._address: tuple[str, int] | None = None
        self._store: Any = None
        self._group: Group | None = None

    def receive(self, offer: Offer, worker: int) -> Iterator[tuple[BucketMeta, torch.Tensor]]:
        """The buckets of `offer` as receiver number `worker` (from 0); each in memory of its own. Raises EngineError, after the last of
        them, when the bytes are not those that were sent."""
        assert offer.address is not None
        if offer.address != self._address:
            self.close()
            self._address, self._store = offer.address, connect(offer.address, self._timeout)
        if (theirs := self._store.get("settings").decode()) != _settings():
            raise EngineError(
                f"NCCL is set up differently on both sides: {theirs} in the trainer, {_settings()} in the engine",
                hint="export the same value for both",
            )
        deadline = time.monotonic() + self._timeout
        self._store.set(f"asked/{offer.version}/{worker}", "")
        if self._group is None:
            self._group = Group(self._store, worker + 1, offer.receivers + 1, self._device, self._timeout)
        try:
            yield from self._buckets(offer, deadline)
        except BaseException:
            self.close()
            raise

    def _buckets(self, offer: Offer, deadline: float) -> Iterator[tuple[BucketMeta, torch.Tensor]]:
        group = self._group
        assert group is not None
        sums, works = [], []

        def begin(meta: BucketMeta) -> tuple[BucketMeta, torch.Tensor]:
            data = torch.empty(meta.nbytes, dtype=torch.uint8, device=self._device)
            works.append(group.broadcast(data))
            return meta, data

        coming = deque(begin(meta) for meta in offer.buckets[:1])
        for number in range(len(offer.buckets)):
            # The next is on its way while the caller copies this one to its place, which takes the processor as long as the link takes.
            coming.extend(begin(meta) for meta in offer.buckets[number + 1 : number + 2])
            meta, data = coming.popleft()
            works[number].wait()
            sums.append(digest(data))
            yield meta, data
            del data
        announced = torch.empty(len(offer.buckets), 8, dtype=torch.int64, device=self._device)
        works.append(group.broadcast(announced))
        group.finish(works, deadline)
        works[-1].wait()
        if sums and not torch.equal(announced, torch.stack(sums)):
            raise EngineError("weights arrived damaged: the sums of the buckets are others than the trainer's")

    def close(self) -> None:
        if self._group is not None:
            self._group.close()
        self._group = self._store = self._address = None
