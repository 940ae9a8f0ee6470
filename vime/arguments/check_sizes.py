"""Checks of lengths, batches, parallel sizes and the model's shape."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

from vime.arguments.model_shape import contradictions, shape_flags
from vime.errors import Problem, VimeError

#: Head sizes that vLLM's attention on a CPU has kernels for. With another the server starts, and the first request kills it.
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)


def lengths(args: Namespace) -> Iterator[Problem]:
    context, prompt, response = args.rollout_max_context_len, args.rollout_max_prompt_len, args.rollout_max_response_len
    for name in (
        "rollout_max_context_len",
        "rollout_max_prompt_len",
        "rollout_max_response_len",
        *({"eval_max_response_len"} & args.given),
    ):
        if (value := getattr(args, name)) is not None and value < 1:
            yield Problem(f"--{name.replace('_', '-')} is {value}", "it must be at least 1")
    if context is None:
        return
    if prompt is not None and prompt > context - 1:
        yield Problem(
            f"--rollout-max-prompt-len {prompt} leaves no token for an answer in --rollout-max-context-len {context}",
            f"at most {context - 1}",
        )
    if response is not None and response >= context:
        yield Problem(
            f"--rollout-max-response-len {response} does not fit --rollout-max-context-len {context} beside a prompt"
        )
    if (
        args.max_position_embeddings is not None
        and context > args.max_position_embeddings
        and not args.use_rope_scaling
    ):
        yield Problem(
            f"--rollout-max-context-len {context} is longer than the model's {args.max_position_embeddings} positions"
        )


def batches(args: Namespace) -> Iterator[Problem]:
    """Public report trl#3199: say the rule and the nearest valid values."""
    if args.rollout_batch_size is None:
        return
    for name in ("rollout_batch_size", "n_samples_per_prompt", "global_batch_size", "micro_batch_size"):
        if getattr(args, name) < 1:
            yield Problem(f"--{name.replace('_', '-')} is {getattr(args, name)}", "it must be at least 1")
            return
    samples = args.rollout_batch_size * args.n_samples_per_prompt
    if args.over_sampling_batch_size < args.rollout_batch_size:
        yield Problem(
            f"--over-sampling-batch-size {args.over_sampling_batch_size} is smaller than --rollout-batch-size {args.rollout_batch_size}"
        )
    if samples % args.global_batch_size:
        yield Problem(
            f"--global-batch-size {args.global_batch_size} does not divide the {samples} samples of a step "
            f"({args.rollout_batch_size} prompts x {args.n_samples_per_prompt})",
            f"nearest that do: {_nearest_divisors(samples, args.global_batch_size)}",
        )
    elif args.num_steps_per_rollout and args.num_steps_per_rollout * args.global_batch_size != samples:
        yield Problem(
            f"--num-steps-per-rollout {args.num_steps_per_rollout} x --global-batch-size {args.global_batch_size} is not {samples} samples",
            "leave one of the two out",
        )
    if args.use_dynamic_batch_size and args.max_tokens_per_gpu is None:
        yield Problem("--use-dynamic-batch-size needs --max-tokens-per-gpu", "the tokens of one micro-batch")
    if args.balance_by_flops and not args.use_dynamic_batch_size:
        yield Problem("--balance-by-flops needs --use-dynamic-batch-size")


def group_size(args: Namespace) -> Iterator[Problem]:
    relative = args.advantage_estimator in ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
    trains = args.loss_type == "policy_loss" and not args.debug_rollout_only
    if (
        relative
        and trains
        and args.n_samples_per_prompt == 1
        and not args.custom_advantage_function_path
        and not args.use_opd
    ):
        yield Problem(
            f"--advantage-estimator {args.advantage_estimator} compares the answers to one prompt, so --n-samples-per-prompt 1 teaches nothing",
            "at least 2; 8 is usual",
        )


def parallel(args: Namespace) -> Iterator[Problem]:
    ranks = args.actor_num_nodes * args.actor_num_gpus_per_node
    model_ranks = args.tensor_model_parallel_size * args.pipeline_model_parallel_size * args.context_parallel_size
    if ranks % model_ranks:
        yield Problem(
            f"{ranks} trainer ranks cannot be cut into tensor {args.tensor_model_parallel_size} x pipeline "
            f"{args.pipeline_model_parallel_size} x context {args.context_parallel_size}",
            f"--actor-num-gpus-per-node must make the ranks a multiple of {model_ranks}",
        )
        return
    data_ranks = ranks // model_ranks
    if args.global_batch_size and not args.use_dynamic_batch_size:
        unit = data_ranks * args.micro_batch_size
        if args.global_batch_size % unit:
            yield Problem(
                f"--global-batch-size {args.global_batch_size} is no multiple of {unit} "
                f"({data_ranks} data parallel ranks x --micro-batch-size {args.micro_batch_size})",
                f"nearest: {_nearest_multiples(args.global_batch_size, unit)}, or --use-dynamic-batch-size",
            )
    for what, value in (("num_attention_heads", args.num_attention_heads), ("num_query_groups", args.num_query_groups)):
        if value is not None and value % args.tensor_model_parallel_size:
            yield Problem(
                f"{value} {what.replace('_', ' ')} cannot be cut over --tensor-model-parallel-size {args.tensor_model_parallel_size}"
            )


def stages(args: Namespace) -> Iterator[Problem]:
    count = args.pipeline_model_parallel_size
    outer = args.decoder_first_pipeline_num_layers, args.decoder_last_pipeline_num_layers
    if count == 1:
        for which, given in zip(("first", "last"), outer, strict=True):
            if given is not None:
                yield Problem(
                    f"--decoder-{which}-pipeline-num-layers {given} without stages",
                    "--pipeline-model-parallel-size makes them",
                )
        return
    if args.num_layers is None:
        return
    from vime.convert.cut import layers_of_stages

    try:
        layers_of_stages(args.num_layers, count, *outer)
    except VimeError as error:
        yield Problem(error.title, error.hint)


def model_agrees(args: Namespace) -> Iterator[Problem]:
    """Public report slime#1059: a model script that disagrees with the checkpoint trained silently wrong."""
    yield from contradictions(args, shape_flags(args.hf_config), f"{args.hf_checkpoint}/config.json")
    for name in ("attention_dropout", "hidden_dropout"):
        if getattr(args, name):
            yield Problem(
                f"--{name.replace('_', '-')} {getattr(args, name)}",
                "the engine drops nothing, so the trainer must not either: 0",
            )


def engine_kernels(args: Namespace) -> Iterator[Problem]:
    if (
        args.device == "cpu"
        and args.rollout_num_gpus
        and args.kv_channels is not None
        and args.kv_channels not in CPU_HEAD_SIZES
    ):
        yield Problem(
            f"vLLM on a CPU has no attention for heads of {args.kv_channels}",
            f"it has {', '.join(map(str, CPU_HEAD_SIZES))}",
        )
    yield from quantisation_blocks(args)


def quantisation_blocks(args: Namespace) -> Iterator[Problem]:
    """Public report slime#1796: a block-quantised width must stay whole on each of the engine's ranks."""
    block = (args.hf_config.get("quantization_config") or {}).get("weight_block_size")
    ranks = args.rollout_num_gpus_per_engine
    if not block or not args.rollout_num_gpus:
        return
    for name in ("intermediate_size", "moe_intermediate_size"):
        width = args.hf_config.get(name)
        if width and width % (block[0] * ranks):
            fitting = [size for size in range(ranks, 0, -1) if ranks % size == 0 and width % (block[0] * size) == 0]
            hint = (
                f"--rollout-num-gpus-per-engine {fitting[0]} fits"
                if fitting
                else "no tensor parallel size fits: use the unquantised weights"
            )
            yield Problem(
                f"{name} {width} cannot be cut into {ranks} parts of whole {block[0]}-wide quantisation blocks", hint
            )


def _nearest_divisors(total: int, wanted: int) -> str:
    divisors = [size for size in range(1, total + 1) if total % size == 0]
    below, above = [d for d in divisors if d < wanted][-1:], [d for d in divisors if d > wanted][:1]
    return " or ".join(map(str, below + above))


def _nearest_multiples(wanted: int, unit: int) -> str:
    below = wanted // unit * unit
    return " or ".join(str(value) for value in (below, below + unit) if value)


SIZE_CHECKS = (lengths, batches, group_size, parallel, stages, model_agrees, engine_kernels)
