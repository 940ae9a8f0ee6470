"""The broadcast of weights, over gloo in the place of NCCL: what is sent arrives in order, damage and deaths are told, and a group lasts."""

from __future__ import annotations

import datetime
import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from vime.errors import EngineError
from vime.transport import nccl, stream
from vime.transport.bucket import Offer, views

CPU = torch.device("cpu")
WEIGHTS = [(f"w{i}", torch.arange(i * 10, i * 10 + 30, dtype=torch.float32)) for i in range(9)]


class Gloo(nccl.Group):
    """The same group on a CPU."""

    def __init__(self, store: Any, rank: int, size: int, device: torch.device, timeout: float) -> None:
        self.store, self.rank, self.size, self.device, self.timeout = store, rank, size, device, timeout
        prefixed = dist.PrefixStore("weights", store)
        self._group = dist.ProcessGroupGloo(prefixed, rank, size, datetime.timedelta(seconds=timeout))


@pytest.fixture(autouse=True)
def over_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "Group", Gloo)


def update(sender: nccl.Sender, receivers: list[nccl.Receiver], version: str, limit: int = 300) -> list[Any]:
    """One update to all receivers: what each got, or its error."""
    offer = Offer(version, "nccl", stream.layout(WEIGHTS, limit), sender.address, len(receivers))
    found: list[Any] = [None] * len(receivers)

    def take(number: int) -> None:
        try:
            found[number] = {
                name: value.clone()
                for meta, data in receivers[number].receive(offer, number)
                for name, value in views(data, meta)
            }
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=take, args=(number,)) for number in range(len(receivers))]
    for thread in threads:
        thread.start()
    try:
        sender.send(offer, WEIGHTS)
    finally:
        for thread in threads:
            thread.join(30)
    return found


@pytest.mark.parametrize("limit", [1, 300, 10_000])
def test_every_receiver_gets_every_tensor_again_and_again(limit: int) -> None:
    sender = nccl.Sender("127.0.0.1", 2, CPU, 20.0)
    receivers = [nccl.Receiver(CPU, 20.0) for _ in range(2)]
    for version in ("1", "2", "3"):
        for found in update(sender, receivers, version, limit):
            assert list(found) == [name for name, _ in WEIGHTS]
            assert all(torch.equal(found[name], value) for name, value in WEIGHTS)
    sender.close()


def test_bytes_that_change_on_the_way_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = Gloo.broadcast

    def broadcast(self: Gloo, data: torch.Tensor) -> Any:
        if self.rank == 0 and data.dtype == torch.uint8:
            data[3] ^= 4
        return sent(self, data)

    monkeypatch.setattr(Gloo, "broadcast", broadcast)
    sender = nccl.Sender("127.0.0.1", 1, CPU, 20.0)
    (error,) = update(sender, [nccl.Receiver(CPU, 20.0)], "1")
    assert isinstance(error, EngineError)
    assert "damaged" in str(error)
    sender.close()


def test_a_failure_that_is_reported_ends_the_senders_wait_at_once() -> None:
    sender = nccl.Sender("127.0.0.1", 1, CPU, 60.0)
    offer = Offer("1", "nccl", stream.layout(WEIGHTS, 300), sender.address, 1)
    threading.Timer(0.2, stream.report_failure, (sender.address, "the engine was killed")).start()
    began = time.monotonic()
    with pytest.raises(EngineError, match="the engine was killed"):
        sender.send(offer, WEIGHTS)
    assert time.monotonic() - began < 30
    sender.close()


def test_sides_that_share_memory_in_different_ways_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    sender = nccl.Sender("127.0.0.1", 1, CPU, 5.0)
    monkeypatch.setenv("NCCL_CUMEM_ENABLE", "1")
    offer = Offer("1", "nccl", stream.layout(WEIGHTS, 300), sender.address, 1)
    with pytest.raises(EngineError, match="set up differently"):
        list(nccl.Receiver(CPU, 5.0).receive(offer, 0))
    sender.close()
