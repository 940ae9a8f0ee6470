"""Runs inside the vLLM worker: takes a version of the weights, verifies all of it, and only then touches the model.

Registered in vLLM's weight-transfer factory when the worker imports this module (``--worker-extension-cls``).
"""

from __future__ import annotations

from collections.abc import Iterator
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

from vime.engine.command import BACKEND
from vime.transport import disk, gloo, shm
from vime.transport.bucket import Offer, unpack


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
    """`update_weights` stages and verifies; `finish_weight_update` loads. A failure before that leaves the model as it was."""

    init_info_cls = ReceiverInit
    update_info_cls = ReceiverUpdate

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._init = ReceiverInit()
        self._staged: list[tuple[str, torch.Tensor]] = []

    def init_transfer_engine(self, init_info: ReceiverInit) -> None:
        self._init = init_info

    def start_weight_update(self) -> None:
        self._staged = []

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # The base class also synchronises an accelerator, which raises on a CPU.
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: ReceiverUpdate) -> None:
        self._staged.extend(self._verified(Offer.from_dict(update_info.offer)))

    def finish_weight_update(self) -> None:
        # Fused and repacked parameters cannot be copied into: the model's own loader must see checkpoint tensors.
        initialize_layerwise_reload(self.model)
        staged, self._staged = self._staged, []
        self.model.load_weights(iter(staged))
        finalize_layerwise_reload(self.model, self.model_config)
        _repack_embeddings(self.model)

    def shutdown(self) -> None:
        self._staged = []

    def _verified(self, offer: Offer) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, tensor) of everything in `offer`; raises at the first checksum that is wrong."""
        if offer.kind == "gloo":
            worker = self._init.first_worker + self.parallel_config.rank
            for meta, data in gloo.receive(offer, worker, self._init.timeout):
                yield from unpack(data, meta)
        else:
            for meta in offer.buckets:
                yield from disk.read(meta) if offer.kind == "disk" else unpack(shm.read(meta), meta)


def _repack_embeddings(model: torch.nn.Module) -> None:
    """Renew the packed copy of embeddings that also serve as output weights, which a reload leaves as it was.

    Seen in vLLM 0.32.0 on a CPU, through its own `reload_weights` too: the new embedding is looked up, the old one makes the logits.
    """
    for layer in model.modules():
        if isinstance(layer, VocabParallelEmbedding) and hasattr(layer, "cpu_linear"):
            layer.quant_method.process_weights_after_loading(layer)


class WorkerExtension:
    """Mixed into vLLM's worker. What it adds is the registration below; importing it is enough."""


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, Receiver)
