"""The policy: Megatron's GPTModel for a Hugging Face configuration, scored in tokens rather than in logits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

from vime.arguments.megatron import given_fields
from vime.convert.config import ModelShape
from vime.convert.families import FAMILIES
from vime.errors import VimeError
from vime.trainer.attention import PackedAttention, PackedSequences, Rotary
from vime.trainer.kernels import RmsNorm, SwiGlu
from vime.trainer.log_probs import Picks, Scores, chunked_log_probs

if not hasattr(moe_utils, "te_general_gemm"):
    # Its router asks for this name, which its guarded import leaves undefined where Transformer Engine is absent.
    moe_utils.te_general_gemm = None


@dataclass(frozen=True)
class Scoring:
    """What to score: `rows` int64 [n] are packed positions, `targets` int64 [n] the token that follows each, `picks` further
    tokens that might have. `whole`: logits instead of scores."""

    rows: torch.Tensor
    targets: torch.Tensor
    temperature: float = 1.0
    chunk: int = -1
    picks: Picks | None = None
    whole: bool = False


class PolicyModel(GPTModel):
    """GPTModel whose forward pass gives log-probabilities and entropies of chosen tokens of a packed row."""

    def __init__(self, shape: ModelShape, rotary: Rotary, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.shape, self.rotary = shape, rotary

    def hidden_states(self, tokens: torch.Tensor, packed: PackedSequences) -> torch.Tensor:
        """tokens int64 [tokens] -> final hidden states [tokens, hidden], the last norm applied."""
        hidden = self.embedding(input_ids=tokens[None], position_ids=None)
        return self.decoder(hidden_states=hidden, attention_mask=None, packed_seq_params=packed).squeeze(1)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [n, hidden] -> logits [n, this rank's columns of the padded vocabulary]."""
        weight = self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else None
        return self.output_layer(hidden[:, None], weight=weight)[0].squeeze(1)

    def forward(  # type: ignore[override]
        self, tokens: torch.Tensor, packed: PackedSequences, scoring: Scoring
    ) -> Scores | torch.Tensor:
        """Log-probabilities and entropies, fp32 [n], of `scoring.targets`, and those of `scoring.picks`.

        Only the scored rows reach the output layer."""
        hidden = self.hidden_states(tokens, packed).index_select(0, scoring.rows)
        if scoring.whole:
            return self.logits(hidden)
        return chunked_log_probs(
            hidden,
            scoring.targets,
            self.logits,
            chunk=scoring.chunk,
            temperature=scoring.temperature,
            vocab=self.shape.vocab,
            group=self.pg_collection.tp,
            picks=scoring.picks,
        )


def transformer_config(shape: ModelShape, args: Any, device: torch.device, tensor_ranks: int) -> TransformerConfig:
    """Megatron's configuration of a model of `shape`. Raises VimeError when the ranks do not divide it."""
    for what, number in (("attention heads", shape.heads), ("key/value heads", shape.groups), ("ffn width", shape.ffn)):
        if number % tensor_ranks:
            raise VimeError(f"{number} {what} cannot be cut over --tensor-model-parallel-size {tensor_ranks}")
    family = FAMILIES[shape.model_type]
    dtype = training_dtype(args)
    ours = {
        "num_layers": shape.layers,
        "hidden_size": shape.hidden,
        "ffn_hidden_size": shape.ffn,
        "num_attention_heads": shape.heads,
        "num_query_groups": shape.groups,
        "kv_channels": shape.head_dim,
        "normalization": "RMSNorm",
        "layernorm_epsilon": shape.norm_eps,
        "gated_linear_unit": True,
        "activation_func": F.silu,
        "use_te_activation_func": True,  # take the activation from the layer spec
        "add_bias_linear": False,
        "add_qkv_bias": family.qkv_bias,
        "qk_layernorm": family.qk_norm,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "tensor_model_parallel_size": tensor_ranks,
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": dtype == torch.bfloat16,
        # Weights always come from a checkpoint, so none are drawn.
        "perform_initialization": False,
        "use_cpu_initialization": device.type == "cpu",
        # Denominators are computed by us, over the whole step (see `reduce`): Megatron must sum gradients, not average.
        "calculate_per_token_loss": True,
        # Fused kernels need Apex or Transformer Engine.
        "bias_activation_fusion": False,
        "bias_dropout_fusion": False,
        "masked_softmax_fusion": False,
        "gradient_accumulation_fusion": False,
        "apply_rope_fusion": False,
        "cuda_graph_scope": [],
        "recompute_granularity": args.recompute_granularity,
        "recompute_method": args.recompute_method,
        "recompute_num_layers": args.recompute_num_layers,
    }
    # Other fields of Megatron's configuration that the user set; those above are the trainer's own.
    return TransformerConfig(**(given_fields(args, "TransformerConfig") | ours))


def training_dtype(args: Any) -> torch.dtype:
    """bfloat16 with --bf16, else float32."""
    if args.fp16:
        raise VimeError("--fp16 is not supported by the trainer", hint="use --bf16, or neither for float32")
    return torch.bfloat16 if args.bf16 else torch.float32


def block_spec(config: TransformerConfig) -> TransformerBlockSubmodules:
    """Megatron's local layer spec with our packed attention, norms and activation in it."""
    spec = get_gpt_layer_local_spec(qk_layernorm=config.qk_layernorm, normalization=config.normalization)
    layer, attention = spec.submodules, spec.submodules.self_attention.submodules
    layer.input_layernorm = layer.pre_mlp_layernorm = RmsNorm
    layer.mlp.submodules.activation_func = SwiGlu
    attention.core_attention = PackedAttention
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = RmsNorm
    return TransformerBlockSubmodules(layer_specs=[spec] * config.num_layers, layer_norm=RmsNorm)


def build_model(shape: ModelShape, hf_config: Any, args: Any, device: torch.device, tensor_ranks: int) -> PolicyModel:
    """An unfilled model on `device`. Needs Megatron's process groups; fill it with `vime.convert.hf.load_hf`."""
    config = transformer_config(shape, args, device, tensor_ranks)
    model = PolicyModel(
        shape,
        Rotary.from_hf(hf_config, device),
        config=config,
        transformer_layer_spec=block_spec(config),
        vocab_size=shape.padded_vocab(tensor_ranks),
        max_sequence_length=shape.max_positions,
        parallel_output=True,
        share_embeddings_and_output_weights=shape.tied,
        position_embedding_type="none",
    )
    _mark_cut_parameters(model)
    freeze(model, args)
    return model.to(device)


def freeze(model: PolicyModel, args: Any) -> None:
    """Train only the parameters whose Megatron name matches one of `--only-train-params-name-list`, or all but those of
    `--freeze-params-name-list` (regular expressions, searched). Raises VimeError when an expression matches nothing."""
    for flag, trains_matching in (("only_train_params_name_list", True), ("freeze_params_name_list", False)):
        expressions = getattr(args, flag) or []
        names = [name for name, _ in model.named_parameters()]
        for expression in expressions:
            if not any(re.search(expression, name) for name in names):
                raise VimeError(
                    f"--{flag.replace('_', '-')}: {expression!r} matches no parameter",
                    hint=f"names look like {names[1]}",
                )
        if expressions:
            for name, parameter in model.named_parameters():
                matches = any(re.search(expression, name) for expression in expressions)
                parameter.requires_grad = matches is trains_matching


def _mark_cut_parameters(model: PolicyModel) -> None:
    """Tell Megatron which parameters are shards. It marks them while it draws initial values, which we skip; unmarked ones
    count as copies, and the gradient norm would be that of the first tensor rank alone."""
    parameters = dict(model.named_parameters())
    for name, rule, _ in FAMILIES[model.shape.model_type].rules(model.shape):
        if rule.cut is not None and not hasattr(parameters[name], "tensor_model_parallel"):
            set_tensor_model_parallel_attributes(parameters[name], True, rule.cut, 1)
