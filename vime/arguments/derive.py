"""Values that follow from others. Each step reads the namespace and sets what the user left open; none of them judges (``checks.py`` does)."""

from __future__ import annotations

import os
import secrets
import shutil
from argparse import Namespace
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from vime.accelerator.registry import Can, detect
from vime.agents import GENERATE
from vime.arguments import catalogue
from vime.arguments.model_groups import model_groups
from vime.arguments.model_shape import complete_shape, read_hf_config, shape_flags
from vime.files import SHARED_MEMORY
from vime.rollout.pool.schedules import DEFAULT_LAG, FULLY_ASYNC, IN_FLIGHT, SYNCHRONOUS

#: What slime names to generate ahead of training; here it is a schedule of the one rollout function.
SLIME_FULLY_ASYNC = "vime.rollout.fully_async_rollout.generate_rollout_fully_async"


def derive(args: Namespace) -> Namespace:
    """A copy of `args` with every open value set. Raises UsageError when the checkpoint's config.json is not JSON."""
    args = Namespace(**vars(args))
    for step in STEPS:
        step(args)
    return args


def cuda_is_visible() -> bool:
    """Whether a GPU can be used, told from the device files: importing torch for it would take seconds."""
    found = detect()
    return found is not None and Can.AS_CUDA in found.can


def device(args: Namespace) -> None:
    if args.device == "auto":
        args.device = "cuda" if cuda_is_visible() else "cpu"


def run(args: Namespace) -> None:
    if args.load_debug_rollout_data:
        args.debug_train_only = True
    if args.debug_train_only:
        args.eval_interval = None  # there is no engine to answer
    if args.run_id is None:
        args.run_id = f"{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    if args.run_dir is None:
        args.run_dir = args.save or str(Path("runs") / args.run_id)


def dumps(args: Namespace) -> None:
    if args.dump_details:
        folder = Path(args.dump_details)
        args.save_debug_rollout_data = args.save_debug_rollout_data or str(folder / "rollout_{rollout_id}.pt")
        args.save_debug_train_data = args.save_debug_train_data or str(folder / "train_{rollout_id}.pt")


def cluster(args: Namespace) -> None:
    on_gpu = args.device == "cuda"
    if args.num_gpus_per_node is None:
        found = detect() if on_gpu else None
        args.num_gpus_per_node = args.actor_num_gpus_per_node or (found.count() if found else 8 if on_gpu else 1)
    if args.actor_num_gpus_per_node is None:
        args.actor_num_gpus_per_node = args.num_gpus_per_node
    ranks = args.actor_num_nodes * args.actor_num_gpus_per_node
    if args.debug_train_only or (args.loss_type == "sft_loss" and args.rollout_num_gpus is None):
        args.rollout_num_gpus = 0
    elif args.rollout_num_gpus is None:
        args.rollout_num_gpus = ranks if args.colocate else args.rollout_num_gpus_per_engine
    # On a CPU there is no device memory to hand over: sleeping would cost time and free nothing.
    for name in ("offload_train", "offload_rollout"):
        if args.offload:
            setattr(args, name, True)
        elif getattr(args, name) is None:
            setattr(args, name, args.colocate and on_gpu)
    if args.distributed_backend is None:
        args.distributed_backend = "nccl" if on_gpu else "gloo"
    if args.router_policy is None:
        args.router_policy = "least_loaded"


def batch(args: Namespace) -> None:
    if args.rollout_batch_size is None:
        return
    samples = args.rollout_batch_size * args.n_samples_per_prompt
    if args.global_batch_size is None:
        args.global_batch_size = samples // (args.num_steps_per_rollout or 1)
    if args.num_steps_per_rollout is None and args.global_batch_size:
        args.num_steps_per_rollout = samples // args.global_batch_size
    if args.over_sampling_batch_size is None:
        args.over_sampling_batch_size = args.rollout_batch_size
    if args.balance_by_flops:
        args.balance_data = True
    if args.log_probs_max_tokens_per_gpu is None:
        args.log_probs_max_tokens_per_gpu = args.max_tokens_per_gpu
    if args.n_samples_per_prompt == 1:
        args.disable_grpo_std_normalization = True


def schedule(args: Namespace) -> None:
    if args.rollout_function_path == SLIME_FULLY_ASYNC:
        args.rollout_function_path = catalogue.by_name()["rollout_function_path"].default
        args.rollout_schedule = args.rollout_schedule or FULLY_ASYNC
    if args.rollout_schedule is None:
        args.rollout_schedule = SYNCHRONOUS if args.flush_cache_interval == 1 else IN_FLIGHT
    if args.rollout_schedule == IN_FLIGHT and "flush_cache_interval" not in args.given:
        args.flush_cache_interval = 0
    if args.max_policy_lag is None:
        args.max_policy_lag = DEFAULT_LAG[args.rollout_schedule]


def model(args: Namespace) -> None:
    """What the checkpoint says, for every model flag that the user left out."""
    present = args.hf_checkpoint is not None and (Path(args.hf_checkpoint) / "config.json").is_file()
    args.hf_config = read_hf_config(args.hf_checkpoint) if present else {}
    for name, value in shape_flags(args.hf_config).items():
        if name not in args.given:
            setattr(args, name, value)
    complete_shape(args)


def lengths(args: Namespace) -> None:
    if args.rollout_max_context_len is None:
        bounds = [
            bound for bound in (args.max_position_embeddings, vars(args).get("vllm_max_model_len")) if bound is not None
        ]
        args.rollout_max_context_len = min(bounds, default=None)
    if args.rollout_max_prompt_len is None and args.rollout_max_context_len is not None:
        args.rollout_max_prompt_len = args.rollout_max_context_len - 1


def evaluation(args: Namespace) -> None:
    for name in ("temperature", "top_p", "top_k", "max_response_len", "max_prompt_len", "max_context_len"):
        if getattr(args, f"eval_{name}") is None:
            setattr(args, f"eval_{name}", getattr(args, f"rollout_{name}"))
    for name in ("input_key", "label_key", "tool_key"):
        if getattr(args, f"eval_{name}") is None:
            setattr(args, f"eval_{name}", getattr(args, name))
    if args.eval_function_path is None:
        args.eval_function_path = args.rollout_function_path


def serving(args: Namespace) -> None:
    """The served models; without a file of them, the policy alone."""
    if args.assume_files:
        args.vllm_config = None
    args.model_groups = model_groups(args)
    if args.vllm_config is not None and "rollout_num_gpus" not in args.given:
        args.rollout_num_gpus = sum(group.devices for group in args.model_groups)


def agents(args: Namespace) -> None:
    if args.agent_path is not None and args.custom_generate_function_path is None:
        args.custom_generate_function_path = GENERATE


def algorithm(args: Namespace) -> None:
    if args.eps_clip_high is None:
        args.eps_clip_high = args.eps_clip
    if args.eval_reward_key is None:
        args.eval_reward_key = args.reward_key
    if args.ref_load is None:
        args.ref_load = args.hf_checkpoint
    if args.parity_threshold is None:
        args.parity_threshold = 0.1 if args.bf16 or args.fp16 else 1e-4


def transport(args: Namespace) -> None:
    if args.update_weight_transport is None:
        on_gpu = "ipc" if args.colocate else "nccl"
        on_cpu = "shm" if _share_memory(args) else "gloo"
        args.update_weight_transport = on_gpu if args.device == "cuda" else on_cpu
    if args.rollout_data_dir is None and args.save is not None:
        args.rollout_data_dir = str(Path(args.save) / "rollout_data")


def _share_memory(args: Namespace) -> bool:
    """Whether trainer and engines are all of this host, and its shared memory has room for two versions of the weights in fp32."""
    elsewhere = os.environ.get("RAY_ADDRESS") or any(group.trained and group.urls for group in args.model_groups)
    if elsewhere or args.hf_checkpoint is None or not SHARED_MEMORY.is_dir():
        return False
    stored = sum(file.stat().st_size for file in Path(args.hf_checkpoint).glob("*.safetensors"))
    return shutil.disk_usage(SHARED_MEMORY).free >= 4 * stored  # stored with at least two bytes a number


STEPS: tuple[Callable[[Namespace], None], ...] = (
    device,
    run,
    dumps,
    cluster,
    batch,
    schedule,
    model,
    lengths,
    evaluation,
    serving,
    agents,
    algorithm,
    transport,
)
