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
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from vime.engine.command import BACKEND
from vime.transport import gloo, shm
from vime.transport.bucket import BucketMeta, Offer, unpack


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
        for meta, data in self._buckets(Offer.from_dict(update_info.offer)):
            self._staged.extend(unpack(data, meta))

    def finish_weight_update(self) -> None:
        # Fused and repacked parameters cannot be copied into: the model's own loader must see checkpoint tensors.
        initialize_layerwise_reload(self.model)
        staged, self._staged = self._staged, []
        self.model.load_weights(iter(staged))
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        self._staged = []

    def _buckets(self, offer: Offer) -> Iterator[tuple[BucketMeta, torch.Tensor]]:
        if offer.kind == "gloo":
            yield from gloo.receive(offer, self._init.first_worker + self.parallel_config.rank, self._init.timeout)
        else:
            for meta in offer.buckets:
                yield meta, shm.read(meta)


class WorkerExtension:
    """Mixed into vLLM's worker. What it adds is the registration below; importing it is enough."""


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, Receiver)
