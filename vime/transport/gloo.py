"""Weights by gloo broadcast: trainer rank 0 sends each bucket to every worker of every engine, on any host.

The group lives for one update. Joining costs some ten milliseconds, and in return there is no state to repair after an
engine died or was replaced. Sender and receiver run this same file; the receiver is inside the engine.
"""

from __future__ import annotations

import datetime
import socket
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist

from vime.engine.net import address_towards
from vime.transport.bucket import Bucket, BucketMeta, Offer

_SENDER = 0


class Sender:
    """Opened before the offer is made, since the offer names its address; `send` then blocks until all have received."""

    def __init__(self, host: str, receivers: int, timeout: float) -> None:
        self._timeout = datetime.timedelta(seconds=timeout)
        self._size = receivers + 1
        self._listener = socket.create_server(
            (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=self._size
        )
        self.address = (host, int(self._listener.getsockname()[1]))
        self._store = dist.TCPStore(
            host,
            self.address[1],
            self._size,
            is_master=True,
            wait_for_workers=False,
            timeout=self._timeout,
            master_listen_fd=self._listener.detach(),  # the store owns the socket from here on: no port is lost
        )

    def send(self, buckets: Sequence[Bucket]) -> None:
        group = _join(self._store, _SENDER, self._size, self._timeout, self.address[0])
        for bucket in buckets:
            _broadcast(group, bucket.data)


def receive(offer: Offer, worker: int, timeout: float) -> Iterator[tuple[BucketMeta, torch.Tensor]]:
    """The buckets of `offer` as receiver number `worker` (from 0): what was announced, and the bytes, uint8 [nbytes]."""
    assert offer.address is not None
    host, port = offer.address
    wait = datetime.timedelta(seconds=timeout)
    store = dist.TCPStore(host, port, offer.receivers + 1, is_master=False, timeout=wait)
    group = _join(store, worker + 1, offer.receivers + 1, wait, address_towards(host, port))
    for meta in offer.buckets:
        data = torch.empty(meta.nbytes, dtype=torch.uint8)
        _broadcast(group, data)
        yield meta, data


def _join(store: dist.Store, rank: int, size: int, timeout: datetime.timedelta, own: str) -> dist.ProcessGroupGloo:
    """`own` is the address that the others reach this process at. By itself gloo takes what the host's name stands for, which is
    127.0.0.1 on many machines: then nodes would not find each other."""
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=own)]
    options._timeout = timeout
    return dist.ProcessGroupGloo(dist.PrefixStore("weights", store), rank, size, options)


def _broadcast(group: dist.ProcessGroupGloo, data: torch.Tensor) -> None:
    options = dist.BroadcastOptions()
    options.rootRank = _SENDER
    options.rootTensor = 0
    group.broadcast([data], options).wait()
