"""Megatron's options: the launcher flags that people know from model scripts, and every other field of megatron-core's configurations.

The trainer builds its configurations from the first kind by name. Fields of the second kind are passed on as they are, when given
(``given_fields``); None means megatron-core's own default.
"""

from __future__ import annotations

from argparse import Namespace
from functools import lru_cache
from typing import Any

from vime.arguments.dataclass_source import package_file, read_fields
from vime.arguments.option import Option, choice, integer, number, switch, text
from vime.arguments.tables.section import Section
from vime.arguments.vllm import option_of

_FROM_CHECKPOINT = "the checkpoint's"

MODEL = Section(
    "Model shape (read from --hf-checkpoint; a given value must agree)",
    (
        *(
            integer(flag, None, help, default_text=_FROM_CHECKPOINT)
            for flag, help in (
                ("--num-layers", "layers"),
                ("--hidden-size", "width"),
                ("--ffn-hidden-size", "width of the feed-forward layers"),
                ("--num-attention-heads", "attention heads"),
                ("--num-query-groups", "key and value heads"),
                ("--kv-channels", "width of a head"),
                ("--vocab-size", "rows of the embedding"),
                ("--max-position-embeddings", "longest context"),
                ("--num-experts", "experts of a layer"),
                ("--moe-ffn-hidden-size", "width of an expert"),
                ("--moe-router-topk", "experts of a token"),
                ("--moe-shared-expert-intermediate-size", "width of the shared experts"),
                ("--q-lora-rank", "rank of the compressed queries of latent attention"),
                ("--kv-lora-rank", "rank of its compressed keys and values"),
                ("--qk-head-dim", "width of its heads' part without position"),
                ("--qk-pos-emb-head-dim", "width of its heads' rotated part"),
                ("--v-head-dim", "width of its values"),
            )
        ),
        choice("--normalization", None, ("LayerNorm", "RMSNorm"), "norm layers", default_text=_FROM_CHECKPOINT),
        number("--norm-epsilon", None, "epsilon of the norms", default_text=_FROM_CHECKPOINT),
        number("--rotary-base", None, "base of the rotary embedding", default_text=_FROM_CHECKPOINT),
        number("--rotary-percent", None, "share of a head that is rotated", default_text=_FROM_CHECKPOINT),
        number("--rotary-scaling-factor", None, "long-context scaling", default_text=_FROM_CHECKPOINT),
        number("--mscale", None, "attention scale of YaRN", default_text=_FROM_CHECKPOINT),
        number("--mscale-all-dim", None, "the same over all widths", default_text=_FROM_CHECKPOINT),
        switch("--multi-latent-attention", "latent attention (MLA)", default=None, default_text=_FROM_CHECKPOINT),
        choice(
            "--position-embedding-type",
            None,
            ("rope", "learned_absolute", "none"),
            "positions",
            default_text=_FROM_CHECKPOINT,
        ),
        switch("--use-rotary-position-embeddings", "rotary positions", default=None, default_text=_FROM_CHECKPOINT),
        switch("--use-rope-scaling", "scaled rotary positions", default=None, default_text=_FROM_CHECKPOINT),
        switch("--swiglu", "gated SiLU", default=None, default_text=_FROM_CHECKPOINT),
        switch(
            "--group-query-attention",
            "fewer key and value heads than heads",
            default=None,
            default_text=_FROM_CHECKPOINT,
        ),
        switch("--disable-bias-linear", "linear layers without bias", default=None, default_text=_FROM_CHECKPOINT),
        switch(
            "--add-qkv-bias", "bias in the attention's input projections", default=None, default_text=_FROM_CHECKPOINT
        ),
        switch("--qk-layernorm", "norm of queries and keys", default=None, default_text=_FROM_CHECKPOINT),
        switch(
            "--untie-embeddings-and-output-weights",
            "separate output weights",
            default=None,
            default_text=_FROM_CHECKPOINT,
        ),
        text("--moe-layer-freq", None, "which layers have experts", default_text=_FROM_CHECKPOINT),
        integer(
            "--make-vocab-size-divisible-by",
            1,
            "the embedding is padded to a multiple of this times the tensor parallel size",
        ),
    ),
)

PARALLEL = Section(
    "Parallelism",
    (
        integer("--tensor-model-parallel-size", 1, "ranks that share each layer"),
        integer("--pipeline-model-parallel-size", 1, "ranks that share the layers"),
        integer("--virtual-pipeline-model-parallel-size", None, "stages of one pipeline rank"),
        integer("--context-parallel-size", 1, "ranks that share a sequence"),
        integer("--expert-model-parallel-size", 1, "ranks that share the experts"),
        integer(
            "--expert-tensor-parallel-size",
            None,
            "ranks that share one expert",
            default_text="--tensor-model-parallel-size",
        ),
        integer("--decoder-first-pipeline-num-layers", None, "layers of the first stage"),
        integer("--decoder-last-pipeline-num-layers", None, "layers of the last stage"),
        switch("--sequence-parallel", "cut activations along the sequence between tensor parallel ranks"),
        switch("--use-distributed-optimizer", "share the optimizer state between data parallel ranks"),
        switch("--overlap-grad-reduce", "reduce gradients during the backward pass"),
        switch("--overlap-param-gather", "gather parameters during the forward pass"),
    ),
)

NUMERICS = Section(
    "Precision and memory",
    (
        switch("--bf16", "bfloat16 weights and activations"),
        switch("--fp16", "float16 weights and activations"),
        choice("--attention-backend", None, ("auto", "flash", "fused", "unfused", "local"), "attention kernel"),
        switch("--attention-softmax-in-fp32", "softmax of the attention in float32", default=True),
        switch("--accumulate-allreduce-grads-in-fp32", "gradients in float32"),
        number("--attention-dropout", 0.0, "must be 0 for RL: the engine drops nothing"),
        number("--hidden-dropout", 0.0, "must be 0 for RL: the engine drops nothing"),
        choice("--recompute-granularity", None, ("full", "selective"), "recompute activations in the backward pass"),
        choice("--recompute-method", None, ("uniform", "block"), "which layers"),
        integer("--recompute-num-layers", None, "layers of one chunk"),
        switch("--deterministic-mode", "bit-for-bit repeatable kernels"),
        switch("--no-rope-fusion", "unfused rotary embedding"),
        switch("--no-masked-softmax-fusion", "unfused softmax"),
        switch("--no-gradient-accumulation-fusion", "unfused weight gradients"),
        switch("--no-check-for-nan-in-loss-and-grad", "do not stop at NaN"),
        integer("--seq-length", None, "not needed: sequences are packed; accepted from model scripts"),
    ),
)

OPTIMIZER = Section(
    "Optimizer",
    (
        choice("--optimizer", "adam", ("adam", "sgd"), "optimizer"),
        number("--adam-beta1", 0.9, "first moment"),
        number("--adam-beta2", 0.999, "second moment"),
        number("--adam-eps", 1e-8, "epsilon"),
        number("--weight-decay", 0.01, "decoupled weight decay"),
        choice(
            "--lr-decay-style",
            "linear",
            ("constant", "linear", "cosine", "inverse-square-root", "WSD"),
            "schedule, in rollout steps",
        ),
        integer("--lr-decay-iters", None, "steps of the decay", default_text="--num-rollout"),
        integer("--lr-warmup-iters", 0, "steps of the warm-up"),
        number("--lr-warmup-fraction", None, "share of the steps instead"),
        number("--lr-warmup-init", 0.0, "learning rate at its start"),
        number("--min-lr", 0.0, "learning rate at the end of the decay"),
        choice(
            "--lr-wsd-decay-style", None, ("exponential", "linear", "cosine", "minus_sqrt"), "decay of the WSD schedule"
        ),
        integer("--lr-wsd-decay-iters", None, "steps of that decay"),
        switch("--optimizer-cpu-offload", "optimizer state in host memory"),
        switch("--overlap-cpu-optimizer-d2h-h2d", "overlap its copies"),
        switch("--use-precision-aware-optimizer", "moments in lower precision"),
    ),
)

SECTIONS = (MODEL, PARALLEL, NUMERICS, OPTIMIZER)

_CONFIGS = (
    ("TransformerConfig", "core/transformer/transformer_config.py"),
    ("ModelParallelConfig", "core/model_parallel_config.py"),
    ("OptimizerConfig", "core/optimizer/optimizer_config.py"),
    ("DistributedDataParallelConfig", "core/distributed/distributed_data_parallel_config.py"),
)
#: Fields whose value is set from the sections above under another name, or that no text can express.
_SET_ELSEWHERE = {
    "layernorm_epsilon", "num_moe_experts", "add_bias_linear", "gated_linear_unit", "params_dtype", "pipeline_dtype", "autocast_dtype",
    "calculate_per_token_loss", "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage", "grad_reduce_in_fp32",
    "apply_rope_fusion", "masked_softmax_fusion", "gradient_accumulation_fusion", "check_for_nan_in_grad", "lr", "clip_grad",
    "perform_initialization", "use_cpu_initialization", "barrier_with_L1_time", "config_logger_dir", "moe_enable_routing_replay",
}  # fmt: skip


@lru_cache(maxsize=1)
def core_options() -> dict[str, tuple[Option, tuple[str, ...]]]:
    """Attribute -> (option, the configurations that have the field). Empty when megatron-core is not installed."""
    known = {option.name for section in SECTIONS for option in section.options}
    found: dict[str, tuple[Option, tuple[str, ...]]] = {}
    for class_name, place in _CONFIGS:
        path = package_file("megatron", place)
        for field in read_fields(path, class_name) if path else ():
            opaque = any(
                word in field.annotation
                for word in ("Callable", "dtype", "ContextManager", "Predicate", "RecipeConfig")
            )
            if field.name in known or field.name in _SET_ELSEWHERE or opaque:
                continue
            option, classes = found.get(field.name, (option_of(field, "--", "", "megatron-core's"), ()))
            found[field.name] = (option, (*classes, class_name))
    return found


def given_fields(args: Namespace, class_name: str) -> dict[str, Any]:
    """The fields of one megatron-core configuration that the user set and that no option of this module's sections covers."""
    return {
        name: value
        for name, (_, classes) in core_options().items()
        if class_name in classes and (value := getattr(args, name)) is not None
    }
