"""Layers that Megatron lacks or computes only with packages that are not needed here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    gather_from_tensor_model_parallel_region,
    scatter_to_sequence_parallel_region,
)
from megatron.core.transformer import multi_latent_attention
from megatron.core.transformer.multi_latent_attention import MLASelfAttention
from megatron.core.transformer.transformer_layer import TransformerLayer

from vime.trainer.attention import PackedAttention, PackedSequences
from vime.trainer.kernels import RmsNorm, rotate

if not isinstance(multi_latent_attention.TELinear, type):
    # It takes its stand-ins for Transformer Engine's presence, and fails when asked for their instances.
    multi_latent_attention.HAVE_TE = False


class LatentCore(PackedAttention):
    """Attention over queries and keys that are rotated already."""

    rotates = False


class LatentAttention(MLASelfAttention):
    """Multi-head latent attention over a packed row: Megatron's projections, our rotation."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.recompute_up_proj = False

    def get_query_key_value_tensors(
        self,
        hidden_states: torch.Tensor,
        key_value_states: None = None,
        position_ids: None = None,
        packed_seq_params: PackedSequences | None = None,
        inference_context: None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """[own tokens, 1, hidden] -> queries, keys [tokens, 1, own heads, width], values, and both compressed forms."""
        assert packed_seq_params is not None
        config = self.config
        if config.q_lora_rank is None:
            compressed = hidden_states
            query, _ = self.linear_q_proj(hidden_states)
        else:
            compressed = self.q_layernorm(self._own_tokens(self._whole(self.linear_q_down_proj(hidden_states)[0])))
            query, _ = self.linear_q_up_proj(compressed)
        latent = self._whole(self.linear_kv_down_proj(hidden_states)[0])
        latent, key_rotated = latent.split([config.kv_lora_rank, config.qk_pos_emb_head_dim], -1)
        # All heads share the rotated part; each rank has only its own heads' gradient of it.
        key_rotated = copy_to_tensor_model_parallel_region(key_rotated, group=self.tp_group)
        latent = self.kv_layernorm(self._own_tokens(latent))
        key_value, _ = self.linear_kv_up_proj(latent)

        heads = self.num_attention_heads_per_partition
        query = query.view(*query.shape[:2], heads, self.q_head_dim)
        key, value = key_value.view(*query.shape[:3], -1).split([config.qk_head_dim, config.v_head_dim], -1)
        turn = _rotation(packed_seq_params)
        plain, rotated = query.split([config.qk_head_dim, config.qk_pos_emb_head_dim], -1)
        query = torch.cat((plain, turn(rotated)), -1)
        key = torch.cat((key, turn(key_rotated[:, :, None]).expand(-1, -1, heads, -1)), -1)
        return query, key, value, compressed, latent

    def _whole(self, cut: torch.Tensor) -> torch.Tensor:
        """All features, where tensor-parallel ranks computed some each."""
        return gather_from_tensor_model_parallel_region(cut, group=self.tp_group)

    def _own_tokens(self, every: torch.Tensor) -> torch.Tensor:
        """Under sequence parallelism the projections that follow gather tokens."""
        return (
            scatter_to_sequence_parallel_region(every, group=self.tp_group) if self.config.sequence_parallel else every
        )


def _rotation(packed: PackedSequences) -> Callable[[torch.Tensor], torch.Tensor]:
    def turn(x: torch.Tensor) -> torch.Tensor:
        return rotate(x.squeeze(1), packed.cos, packed.sin, packed.interleaved)[:, None]

    return turn


Add = Callable[..., torch.Tensor]
AddBuilder = Callable[[bool, bool], Add]


class PostNormLayer(TransformerLayer):
    """A layer that also normalises what attention and feed-forward add to the stream."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        width, eps = config.hidden_size, config.layernorm_epsilon
        self.post_self_attn_layernorm = RmsNorm(config, width, eps)
        self.post_mlp_layernorm = RmsNorm(config, width, eps)
        self.self_attn_bda: AddBuilder = _normalised(self.self_attn_bda, self.post_self_attn_layernorm)
        self.mlp_bda: AddBuilder = _normalised(self.mlp_bda, self.post_mlp_layernorm)


def _normalised(add: AddBuilder, norm: torch.nn.Module) -> AddBuilder:
    """Megatron's bias-dropout-add, of the normalised output."""

    def build(training: bool, fused: bool) -> Add:
        plain = add(training, fused)

        def normed(output: tuple[torch.Tensor, Any], residual: torch.Tensor, dropout: float) -> torch.Tensor:
            return plain((norm(output[0]), output[1]), residual, dropout)

        return normed

    return build
