"""Weights to engines on the trainer's own GPUs: each trainer rank fills a few slots of device memory that the engine on its GPU maps.

CUDA IPC: what crosses the process border are handles, some hundred bytes. A slot is filled again when every engine worker of that GPU
has said that it took what was in it, so the memory is that of the slots, whatever the model. Sender and receiver run this same file.

The slots come from torch's ordinary allocator. Memory of a memory saver, or of expandable segments, cannot be mapped by another process.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
import torch.distributed as dist

from vime.errors import EngineError
from vime.transport.bucket import BucketMeta, Offer
from vime.transport.stream import await_keys, connect, fill, fingerprint, report_failure

#: One is filled while the other is read.
SLOTS = 2


def gpu_name(device: torch.device) -> str:
    """What names the same GPU in every process, whatever number it has there."""
    return str(torch.cuda.get_device_properties(device).uuid)


def share(slot: torch.Tensor) -> bytes:
    """What another process needs to map `slot`. Each call is one use of it, released when the other process drops the mapping."""
    return repr(tuple(slot.untyped_storage()._share_cuda_())).encode()


def attach(handle: bytes, device: torch.device) -> torch.Tensor:
    """Undo `share` in another process: uint8 [bytes of the slot] on `device`."""
    _, *rest = ast.literal_eval(handle.decode())
    # The sender's number of the GPU may be another one here.
    storage = torch.UntypedStorage._new_shared_cuda(device.index or 0, *rest)
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)


def send(
    store: dist.Store,
    offer: Offer,
    weights: Iterable[tuple[str, torch.Tensor]],
    *,
    rank: int,
    senders: int,
    gpu: str,
    device: torch.device,
    timeout: float,
    publish: Callable[[torch.Tensor], bytes] = share,
) -> int:
    """Serve every receiver that sits on `gpu`; blocks until they have it all. Returns the bytes of device memory it took.

    All `senders` ranks call, since gathering `weights` is collective. Raises EngineError when a receiver sits on no sender's GPU, reports a
    failure, or is silent for `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    store.set(f"from/{rank}", gpu)
    await_keys(
        store, [f"at/{r}" for r in range(offer.receivers)], deadline, "not every engine worker asked for its weights"
    )
    readers = [r for r in range(offer.receivers) if store.get(f"at/{r}").decode() == gpu]
    if rank == 0:
        _require_neighbours(store, offer, senders, deadline)
    size = max((meta.nbytes for meta in offer.buckets), default=0)
    slots: list[torch.Tensor] = []
    stream = iter(weights)
    for number, meta in enumerate(offer.buckets):
        place = number % SLOTS
        if not readers:
            for _ in meta.tensors:
                next(stream)
            continue
        if number < SLOTS:
            slots.append(torch.empty(size, dtype=torch.uint8, device=device))
            store.set(f"slot/{gpu}/{place}", publish(slots[place]))
        else:
            _await_taken(store, readers, number - SLOTS, deadline)
        data = slots[place][: meta.nbytes]
        fill(data, meta, stream)
        store.set(f"ready/{gpu}/{number}", str(fingerprint(data)))  # reading the fingerprint waits for the copies
    if readers and offer.buckets:
        for number in range(max(0, len(offer.buckets) - SLOTS), len(offer.buckets)):
            _await_taken(store, readers, number, deadline)
    del slots
    return min(SLOTS, len(offer.buckets)) * size if readers else 0


def receive(
    offer: Offer,
    worker: int,
    *,
    gpu: str,
    device: torch.device,
    timeout: float,
    attach: Callable[[bytes, torch.device], torch.Tensor] = attach,
) -> Iterator[tuple[BucketMeta, torch.Tensor]]:
    """The buckets of `offer` as receiver number `worker`: what was announced, and the bytes, uint8 [nbytes], on `device`.

    The bytes are the sender's own memory and hold until the next bucket is asked for: copy what is needed longer. Raises EngineError when
    they are not those that were sent.
    """
    assert offer.address is not None
    deadline = time.monotonic() + timeout
    store = connect(offer.address, timeout)
    store.set(f"at/{worker}", gpu)
    slots: list[torch.Tensor] = []
    for number, meta in enumerate(offer.buckets):
        await_keys(store, [f"ready/{gpu}/{number}"], deadline, "the trainer did not send its weights")
        place = number % SLOTS
        if place == len(slots):
            slots.append(attach(store.get(f"slot/{gpu}/{place}"), device))
        data = slots[place][: meta.nbytes]
        if fingerprint(data) != int(store.get(f"ready/{gpu}/{number}")):
            first = meta.tensors[0].name
            raise EngineError(f"weights arrived damaged: the bucket that starts with {first} has another checksum")
        yield meta, data
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        store.set(f"taken/{worker}/{number}", "")


def _await_taken(store: dist.Store, readers: Sequence[int], number: int, deadline: float) -> None:
    await_keys(
        store, [f"taken/{r}/{number}" for r in readers], deadline, f"an engine worker did not take bucket {number}"
    )


def _require_neighbours(store: dist.Store, offer: Offer, senders: int, deadline: float) -> None:
    assert offer.address is not None
    await_keys(
        store, [f"from/{r}" for r in range(senders)], deadline, "not every trainer rank came to the weight update"
    )
    own = {store.get(f"from/{r}").decode() for r in range(senders)}
    strangers = [r for r in range(offer.receivers) if store.get(f"at/{r}").decode() not in own]
    if strangers:
        reason = f"engine workers {strangers} sit on GPUs without a trainer rank, which CUDA IPC cannot reach"
        report_failure(offer.address, reason)
        raise EngineError(reason, hint="--update-weight-transport nccl")


def collect() -> None:
    """Give back the slots of an update whose receivers are done."""
    if torch.cuda.is_initialized():
        torch.cuda.ipc_collect()
