"""Loading into a model whose matrices vLLM has packed for a CPU: they get their plain form back, are filled, and are packed again.

vLLM's own way to do that, layer by layer, counts the elements of every copy and binds every call twice, which for a small model is most of
an update. It holds one layer twice where this holds all of them, always, so large models are left to it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.model_loader.reload.meta import materialize_meta_tensor
from vllm.model_executor.model_loader.reload.sanitize import restore_layer_refs
from vllm.platforms import current_platform

from vime.engine.copies import Copies, Named
from vime.errors import EngineError

#: Bytes of the plain matrices up to which nobody misses the memory.
LARGEST = 256 * 2**20


def is_plain(model: torch.nn.Module) -> bool:
    """Whether every layer is of a kind that vLLM 0.32.0 neither quantises nor derives other matrices for. What it packs is the device's affair."""
    plain = (type(None), UnquantizedLinearMethod, UnquantizedEmbeddingMethod)
    return all(
        type(getattr(layer, "quant_method", None)) in plain
        and (type(layer) is Attention or not hasattr(layer, "process_weights_after_loading"))
        for layer in model.modules()
    )


@functools.cache
def suits(model: torch.nn.Module) -> bool:
    """Whether `model` is small and all that was made of its weights are packed matrices, judged by what vLLM 0.32.0 does on a CPU."""
    return (
        current_platform.is_cpu()
        and is_plain(model)
        and sum(_form(layer).nbytes for layer in _packed(model)) <= LARGEST
    )


class Packed:
    """Loads into one model that `suits`."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._layers = _packed(model)
        self._plain = [materialize_meta_tensor(restore_layer_refs(_form(layer), layer)) for layer in self._layers]
        self._copies = Copies(model)

    def load(self, buckets: Iterable[Named]) -> None:
        """Fill and pack. Raises EngineError when a matrix got not all of its values; the model is of no use then."""
        for layer, plain in zip(self._layers, self._plain, strict=True):
            del layer.weight
            layer.register_parameter("weight", plain.fill_(float("nan")))
        self._copies.load(buckets)
        for layer, plain in zip(self._layers, self._plain, strict=True):
            if bool(plain.isnan().any()):
                raise EngineError(f"the update lacks values of a {type(layer).__name__} of shape {tuple(plain.shape)}")
            layer.quant_method.process_weights_after_loading(layer)


def _packed(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Linear layers whose matrix is gone: kernels keep it in a form of their own."""
    return [
        layer
        for layer in model.modules()
        if type(getattr(layer, "quant_method", None)) is UnquantizedLinearMethod and not layer.weight.numel()
    ]


def _form(layer: torch.nn.Module) -> torch.Tensor:
    """The layer's matrix as it was before it was packed, without its values."""
    form: torch.Tensor = get_layerwise_info(layer).restore_metadata[0]["weight"]
    return form
