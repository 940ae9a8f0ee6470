"""Weights by gloo broadcast: trainer rank 0 sends each bucket to every worker of every engine, on any host.

The group lives for one update. Joining costs some ten milliseconds, and in return there is no state to repair after an
engine died or was replaced. Gloo itself cannot be told to give up, so nobody joins before all have said that they are there:
until then whoever learns of a failure ends the wait of all others. Sender and receiver run this same file; the receiver is inside
the engine.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist

from vime.engine.net import address_towards
from vime.transport.bucket import Bucket, BucketMeta, Offer
from vime.transport.stream import Endpoint, await_keys, connect

_SENDER = 0
#: All are there when they begin to join.
_JOIN_SECONDS = 30.0


class Sender:
    """Opened before the offer is made, since the offer names its address; `send` then blocks until all have received."""

    def __init__(self, host: str, receivers: int, timeout: float) -> None:
        self._timeout, self._receivers = timeout, receivers
        self._endpoint = Endpoint(host, timeout)
        self.address = self._endpoint.address

    def send(self, buckets: Sequence[Bucket]) -> None:
        """Raises EngineError when a receiver does not come or somebody reports a failure before, what gloo raises after it."""
        store = self._endpoint.store
        group = _join(store, _SENDER, self._receivers + 1, self._timeout, self.address[0])
        for bucket in buckets:
            _broadcast(group, bucket.data, self._timeout)


def receive(offer: Offer, worker: int, timeout: float) -> Iterator[tuple[BucketMeta, torch.Tensor]]:
    """The buckets of `offer` as receiver number `worker` (from 0): what was announced, and the bytes, uint8 [nbytes]. Raises as `send` does."""
    assert offer.address is not None
    group = _join(
        connect(offer.address, timeout), worker + 1, offer.receivers + 1, timeout, address_towards(*offer.address)
    )
    for meta in offer.buckets:
        data = torch.empty(meta.nbytes, dtype=torch.uint8)
        _broadcast(group, data, timeout)
        yield meta, data


def _join(store: dist.Store, rank: int, size: int, timeout: float, own: str) -> dist.ProcessGroupGloo:
    """`own` is the address that the others reach this process at. By itself gloo takes what the host's name stands for, which is
    127.0.0.1 on many machines: then nodes would not find each other."""
    store.set(f"here/{rank}", "")
    there = [f"here/{one}" for one in range(size)]
    await_keys(store, there, time.monotonic() + timeout, "not every engine worker came for its weights")
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=own)]
    options._timeout = datetime.timedelta(seconds=min(timeout, _JOIN_SECONDS))
    return dist.ProcessGroupGloo(dist.PrefixStore("weights", store), rank, size, options)


def _broadcast(group: dist.ProcessGroupGloo, data: torch.Tensor, timeout: float) -> None:
    options = dist.BroadcastOptions()
    options.rootRank = _SENDER
    options.rootTensor = 0
    options.timeout = datetime.timedelta(seconds=timeout)
    group.broadcast([data], options).wait()
