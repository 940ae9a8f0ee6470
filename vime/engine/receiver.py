"""Runs inside the vLLM worker: takes a version of the weights, verifies all of it, and only then touches the model.

Registered in vLLM's weight-transfer factory when the worker imports this module (``--worker-extension-cls``).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform

from vime.engine import number_lists, packed
from vime.engine.command import BACKEND
from vime.engine.copies import Copies, Named
from vime.errors import EngineError
from vime.transport import disk, gloo, ipc, nccl, shm
from vime.transport.bucket import Offer, unpack, views

#: Media that move device memory.
STREAMED = ("ipc", "nccl")


@dataclass
class ReceiverInit(WeightTransferInitInfo):
    """`first_worker`: number of this engine's first worker among the receivers. `timeout`: seconds for one update."""

    first_worker: int = 0
    timeout: float = 600.0


@dataclass
class ReceiverUpdate(WeightTransferUpdateInfo):
    """`offer` is `Offer.to_dict()`."""

    offer: dict[str, Any] = field(default_factory=dict)


class Receiver(WeightTransferEngine[ReceiverInit, ReceiverUpdate]):
    """`update_weights` stages and verifies; `finish_weight_update` loads. A failure before that leaves the model as it was.

    Media of device memory load bucket by bucket instead, since a second copy of the weights beside the first is what they are there to
    avoid; a failure in the middle leaves neither version, as every failed update does (the engine is replaced). With `prefetch` they stage
    too: a thread receives into device memory while the engine generates.
    """

    init_info_cls = ReceiverInit
    update_info_cls = ReceiverUpdate

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._init = ReceiverInit()
        self._staged: list[tuple[str, torch.Tensor]] = []
        self._loading = False
        self._nccl: nccl.Receiver | None = None
        self._prefetch: Prefetch | None = None
        self._copies: Copies | None = None
        self._packed: packed.Packed | None = None

    def init_transfer_engine(self, init_info: ReceiverInit) -> None:
        self._init = init_info
        self.shutdown()  # engines were replaced: a communicator with them is of no use

    def start_weight_update(self) -> None:
        self._staged, self._loading = [], False

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # The base class also synchronises an accelerator, which raises on a CPU.
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: ReceiverUpdate) -> None:
        offer = Offer.from_dict(update_info.offer)
        if offer.kind not in STREAMED:
            self._staged.extend(self._verified(offer))
        elif offer.prefetch:
            self._prefetch = Prefetch(self._streamed(offer), self.device)
        else:
            self._load(self._streamed(offer))

    def finish_weight_update(self) -> None:
        if self._prefetch is not None:
            prefetch, self._prefetch = self._prefetch, None
            self._staged = prefetch.result()
            self._load([self._staged])
            # Its memory belongs to the stream that it came on: the next version may come into it from now on.
            torch.cuda.synchronize(self.device)
        elif not self._loading:
            self._load([self._staged])
        self._staged = []
        if not self._in_place:
            if self._packed is None:
                finalize_layerwise_reload(self.model, self.model_config)
            _repack_embeddings(self.model)
            _repack_experts(self.model)
        self._loading = False

    def shutdown(self) -> None:
        self._staged = []
        if self._nccl is not None:
            self._nccl.close()
            self._nccl = None

    @property
    def _in_place(self) -> bool:
        """Whether the model holds checkpoint tensors as they are, only stacked: then each is copied to its place, and no layer rebuilt."""
        return loads_in_place(self.model)

    def _load(self, buckets: Iterable[Named]) -> None:
        self._loading = True
        with torch.no_grad():
            if self._in_place:
                self._copies = self._copies or Copies(self.model)
                self._copies.load(buckets)
            elif packed.suits(self.model):
                self._packed = self._packed or packed.Packed(self.model)
                self._packed.load(buckets)
            else:
                # Fused and repacked parameters cannot be copied into: the model's own loader must see checkpoint tensors.
                initialize_layerwise_reload(self.model)
                self.model.load_weights(tensor for bucket in buckets for tensor in bucket)

    def _streamed(self, offer: Offer) -> Iterator[list[tuple[str, torch.Tensor]]]:
        """Bucket by bucket, tensors that may be kept."""
        worker = self._init.first_worker + self.parallel_config.rank
        if offer.kind == "ipc":
            name = ipc.gpu_name(self.device)
            for meta, data in ipc.receive(offer, worker, gpu=name, device=self.device, timeout=self._init.timeout):
                # The memory is the trainer's, and filled again when the next bucket is asked for. A layer that is rebuilt waits for its last
                # tensor, which may be in that one.
                yield list(views(data if self._in_place else data.clone(), meta))
        else:
            if self._nccl is None:
                self._nccl = nccl.Receiver(self.device, self._init.timeout)
            for meta, data in self._nccl.receive(offer, worker):
                yield list(views(data, meta))

    def _verified(self, offer: Offer) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, tensor) of everything in `offer`; raises at the first checksum that is wrong."""
        if offer.kind == "gloo":
            worker = self._init.first_worker + self.parallel_config.rank
            for meta, data in gloo.receive(offer, worker, self._init.timeout):
                yield from unpack(data, meta)
        else:
            for meta in offer.buckets:
                yield from disk.read(meta) if offer.kind == "disk" else unpack(shm.read(meta), meta)


@functools.cache
def loads_in_place(model: torch.nn.Module) -> bool:
    """Whether nothing was made of the weights after they were loaded: no quantisation, repacking or matrices derived from others.

    Judged by what vLLM 0.32.0 does to each kind of layer on a CUDA device; whatever is not known here is rebuilt layer by layer.
    """
    return current_platform.is_cuda_alike() and packed.is_plain(model)


class Prefetch:
    """Receives on a thread and a stream of its own while the engine goes on generating."""

    def __init__(self, buckets: Iterator[list[tuple[str, torch.Tensor]]], device: torch.device) -> None:
        self._found: list[tuple[str, torch.Tensor]] = []
        self._error: BaseException | None = None
        self._device = device
        self._thread = threading.Thread(target=self._run, args=(buckets,), name="weight-prefetch", daemon=True)
        self._thread.start()

    def result(self) -> list[tuple[str, torch.Tensor]]:
        """All tensors; waits for them. Raises what the thread raised."""
        self._thread.join()
        if self._error is not None:
            raise EngineError(f"receiving weights failed: {self._error}") from self._error
        found, self._found = self._found, []
        return found

    def _run(self, buckets: Iterator[list[tuple[str, torch.Tensor]]]) -> None:
        try:
            torch.cuda.set_device(self._device)
            stream = torch.cuda.Stream(self._device)
            with torch.cuda.stream(stream):
                for bucket in buckets:
                    self._found.extend(bucket)
                stream.synchronize()
        except BaseException as error:
            self._error = error


def _repack_embeddings(model: torch.nn.Module) -> None:
    """Renew the packed copy of embeddings that also serve as output weights, which a reload leaves as it was.

    Seen in vLLM 0.32.0 on a CPU, through its own `reload_weights` too: the new embedding is looked up, the old one makes the logits.
    """
    for layer in model.modules():
        if isinstance(layer, VocabParallelEmbedding) and hasattr(layer, "cpu_linear"):
            layer.quant_method.process_weights_after_loading(layer)


def _repack_experts(model: torch.nn.Module) -> None:
    """Bring new experts into the form that the CPU's kernel reads, which a reload leaves out.

    Seen in vLLM 0.32.0: only the first load packs them, later ones copy plain weights to where the kernel expects packed ones.
    """
    if not current_platform.is_cpu():
        return
    for layer in model.modules():
        kernel = getattr(getattr(layer, "quant_method", None), "moe_kernel", None)
        if kernel is not None:
            kernel.fused_experts.process_weights_after_loading(layer)


class WorkerExtension:
    """Mixed into vLLM's worker. What it adds is the registration below; importing it is enough."""


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, Receiver)
number_lists.install_in_worker()
