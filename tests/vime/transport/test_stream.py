"""Device memory media: what is sent arrives, slots are used again only when they were taken, and nobody waits for the dead."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vime.errors import EngineError
from vime.transport import ipc, stream
from vime.transport.bucket import Offer, views

DTYPES = (torch.float32, torch.bfloat16, torch.int8)
SHAPES = st.lists(st.integers(0, 7), min_size=0, max_size=3).map(tuple)
WEIGHTS = st.lists(st.tuples(SHAPES, st.sampled_from(DTYPES)), min_size=1, max_size=8)


def tensors(spec: list[tuple[tuple[int, ...], torch.dtype]]) -> list[tuple[str, torch.Tensor]]:
    torch.manual_seed(0)
    return [(f"w{i}", (torch.randn(shape) * 50).to(dtype)) for i, (shape, dtype) in enumerate(spec)]


@given(spec=WEIGHTS, limit=st.integers(1, 2000))
def test_a_layout_holds_every_tensor_once_in_order_within_the_limit(spec: Any, limit: int) -> None:
    sent = tensors(spec)
    metas = stream.layout(sent, limit)
    assert [tensor.name for meta in metas for tensor in meta.tensors] == [name for name, _ in sent]
    assert all(len(meta.tensors) == 1 or meta.nbytes <= limit for meta in metas)
    source, found = iter(sent), []
    for meta in metas:
        data = torch.zeros(meta.nbytes, dtype=torch.uint8)
        stream.fill(data, meta, source)
        found += [(name, value.clone()) for name, value in views(data, meta)]
    for (name, a), (other, b) in zip(found, sent, strict=True):
        assert (name, a.dtype, a.shape) == (other, b.dtype, b.shape)
        assert torch.equal(a, b)


def test_weights_of_another_layout_are_refused() -> None:
    (meta,) = stream.layout([("a", torch.zeros(3))], 1000)
    data = torch.zeros(meta.nbytes, dtype=torch.uint8)
    for wrong in ([("b", torch.zeros(3))], [("a", torch.zeros(4))], [("a", torch.zeros(3, dtype=torch.int8))], []):
        with pytest.raises(EngineError, match="changed their layout: a was announced"):
            stream.fill(data, meta, iter(wrong))


@settings(max_examples=50)
@given(position=st.integers(0, 255), bit=st.integers(0, 7))
def test_one_flipped_bit_changes_the_fingerprint(position: int, bit: int) -> None:
    data = torch.arange(256, dtype=torch.uint8)
    before = stream.fingerprint(data)
    data[position] ^= 1 << bit
    assert stream.fingerprint(data) != before


def test_exchanged_words_change_the_fingerprint() -> None:
    data = torch.arange(64, dtype=torch.uint8)
    swapped = torch.cat((data[8:16], data[:8], data[16:]))
    assert stream.fingerprint(swapped) != stream.fingerprint(data)


class Memory:
    """Stands for CUDA's handles: within one process a slot is found again by its name."""

    def __init__(self) -> None:
        self.slots: dict[str, torch.Tensor] = {}

    def publish(self, slot: torch.Tensor) -> bytes:
        name = str(len(self.slots))
        self.slots[name] = slot
        return name.encode()

    def attach(self, handle: bytes, _: torch.device) -> torch.Tensor:
        return self.slots[handle.decode()]


CPU = torch.device("cpu")


def in_threads(*works: Callable[[], Any]) -> list[Any]:
    results: list[Any] = [None] * len(works)

    def run(number: int, work: Callable[[], Any]) -> None:
        try:
            results[number] = work()
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=item) for item in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def exchange(gpus: list[str], receivers: list[str]) -> tuple[list[Any], list[Any], Any]:
    """Senders on `gpus`, receivers on `receivers`: what each side returned, and what was sent."""
    sent = tensors([((40,), torch.float32), ((7, 9), torch.bfloat16), ((300,), torch.int8), ((5,), torch.float32)])
    endpoint, memory = stream.Endpoint("127.0.0.1", 20), Memory()
    offer = Offer("1", "ipc", stream.layout(sent, 256), endpoint.address, len(receivers))
    assert len(offer.buckets) > ipc.SLOTS

    def send(rank: int) -> int:
        store = endpoint.store if rank == 0 else stream.connect(endpoint.address, 20)
        return ipc.send(
            store, offer, sent, rank=rank, senders=len(gpus), gpu=gpus[rank], device=CPU, timeout=20, publish=memory.publish
        )  # fmt: skip

    def receive(worker: int) -> list[tuple[str, torch.Tensor]]:
        found = []
        for meta, data in ipc.receive(
            offer, worker, gpu=receivers[worker], device=CPU, timeout=20, attach=memory.attach
        ):
            found += [(name, value.clone()) for name, value in views(data, meta)]
        return found

    works = [*(lambda r=r: send(r) for r in range(len(gpus))), *(lambda w=w: receive(w) for w in range(len(receivers)))]
    results = in_threads(*works)
    return results[: len(gpus)], results[len(gpus) :], sent


@pytest.mark.parametrize(
    ("gpus", "receivers"),
    [(["a"], ["a"]), (["a", "b"], ["b", "a"]), (["a", "b"], ["a", "a", "b"]), (["a", "b"], ["b"])],
)
def test_each_receiver_gets_everything_from_its_own_gpu(gpus: list[str], receivers: list[str]) -> None:
    senders, found, sent = exchange(gpus, receivers)
    for got in found:
        assert [name for name, _ in got] == [name for name, _ in sent]
        assert all(torch.equal(a, b) for (_, a), (_, b) in zip(got, sent, strict=True))
    largest = 320  # the third tensor, aligned
    assert senders == [ipc.SLOTS * largest if gpu in receivers else 0 for gpu in gpus]


def test_a_worker_on_a_gpu_without_a_trainer_ends_the_update_on_both_sides() -> None:
    (sender,), found, _ = exchange(["a"], ["a", "z"])
    assert "engine workers [1] sit on GPUs without a trainer rank" in str(sender)
    assert all(isinstance(one, EngineError) and "sit on GPUs" in str(one) for one in found)


def test_bytes_that_changed_on_the_way_are_refused() -> None:
    (meta,) = stream.layout([("w", torch.zeros(40))], 1000)
    endpoint = stream.Endpoint("127.0.0.1", 20)
    offer = Offer("1", "ipc", (meta,), endpoint.address, 1)
    slot = torch.zeros(meta.nbytes, dtype=torch.uint8)
    endpoint.store.set("slot/a/0", "slot")
    endpoint.store.set("ready/a/0", str(stream.fingerprint(slot)))
    slot[5] = 1
    with pytest.raises(EngineError, match="damaged: the bucket that starts with w"):
        list(ipc.receive(offer, 0, gpu="a", device=CPU, timeout=20, attach=lambda *_: slot))


def test_a_reported_failure_ends_the_wait_at_once() -> None:
    endpoint = stream.Endpoint("127.0.0.1", 20)
    began = time.monotonic()
    threading.Thread(target=stream.report_failure, args=(endpoint.address, "engine 3 died")).start()
    with pytest.raises(EngineError, match="given up: engine 3 died"):
        stream.await_keys(endpoint.store, ["never"], began + 60, "nothing came")
    assert time.monotonic() - began < 30


def test_a_deadline_ends_the_wait_and_an_unreachable_store_is_no_error() -> None:
    endpoint = stream.Endpoint("127.0.0.1", 20)
    with pytest.raises(EngineError, match="nothing came in time"):
        stream.await_keys(endpoint.store, ["never"], time.monotonic() + 0.05, "nothing came")
    stream.report_failure(("127.0.0.1", 1), "nobody listens", timeout=0.2)


def test_a_sender_that_is_gone_is_told_without_waiting_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen on a GPU: a trainer killed in a broadcast kept its engine trying to reach it for ten seconds more, with stack traces."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        gone = ("127.0.0.1", held.getsockname()[1])
    monkeypatch.setattr(stream.dist, "TCPStore", lambda *_, **__: pytest.fail("it tried to join the store"))
    offer = Offer("4", "nccl", (), gone, 1)
    with pytest.raises(EngineError, match=r"nobody sends weights at 127\.0\.0\.1:\d+ any more: Connection refused"):
        stream.await_sent(offer, 600)
    stream.report_failure(gone, "the trainer died")


def test_what_was_sent_is_known_to_who_asks() -> None:
    endpoint = stream.Endpoint("127.0.0.1", 20)
    offer = Offer("4", "nccl", (), endpoint.address, 1)
    waited = in_threads(lambda: stream.await_sent(offer, 20), lambda: stream.announce_sent(endpoint.store, "4"))
    assert waited == [None, None]
