"""The command line and environment of one vLLM server, as values."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from vime.arguments.check_sizes import CPU_HEAD_SIZES
from vime.arguments.vllm import engine_flags
from vime.environment import THREAD_COUNTS, thread_environment
from vime.errors import EngineError
from vime.rollout.sampling import cuts_distribution

#: Name of our weight-transfer backend in vLLM's factory.
BACKEND = "vime"
WORKER_EXTENSION = "vime.engine.receiver.WorkerExtension"


def server_command(args: Namespace, rank: int, overrides: dict[str, Any] | None = None) -> list[str]:
    """The command that starts engine `rank`, without the address: the socket is inherited (see `process`).

    Flags that the user gave (``--vllm-*``), and `overrides` by field name, come last and win.
    """
    flags = [
        *("--model", args.hf_checkpoint),
        *("--seed", str(args.seed + rank)),
        *("--tensor-parallel-size", str(args.rollout_num_gpus_per_engine)),
        *("--dtype", engine_dtype(args)),
        # The trainer compares with the distribution that was sampled from: temperature, top-p and top-k applied.
        *("--logprobs-mode", "processed_logprobs"),
        *("--worker-extension-cls", WORKER_EXTENSION),
        *("--weight-transfer-config", json.dumps({"backend": BACKEND})),
        "--enable-scale-out",  # without it the token endpoint answers 403
        "--enable-prompt-tokens-details",
        "--disable-uvicorn-access-log",
    ]
    if args.vllm_disable_log_stats is None:
        # What vLLM counts of every token for /metrics is a tenth of the time of the process that all answers go through.
        flags.append("--disable-log-stats")
    if args.rollout_max_context_len is not None:
        flags += ["--max-model-len", str(args.rollout_max_context_len)]
    if args.offload_rollout and args.device == "cuda":  # refused elsewhere; there the routes answer and free nothing
        flags.append("--enable-sleep-mode")
    if args.use_rollout_routing_replay:
        flags.append("--enable-return-routed-experts")
    if cuts_distribution(args):
        flags.append("--return-sampling-mask")
        if args.use_score_centering:
            flags.append("--return-sampling-mask-logprobs")
    elif args.use_score_centering:
        flags += ["--max-logprobs", str(args.score_centering_top_k + 1)]
    if args.device == "cpu":
        flags += ["--enforce-eager"]
        if args.rollout_num_gpus_per_engine == 1:
            flags += ["--distributed-executor-backend", "uni"]
    return [sys.executable, "-m", "vime.engine.server", *flags, *engine_flags(args, overrides)]


def engine_dtype(args: Namespace) -> str:
    """vLLM's name of the type that the trainer computes in."""
    return "bfloat16" if args.bf16 else "float16" if args.fp16 else "float32"


def server_environment(args: Namespace, threads: int, devices: Sequence[int] = ()) -> dict[str, str]:
    """The environment of a server: this process's, with what vLLM needs. What the user exported wins.

    `devices` are the GPUs of an engine that has several; one that has a single GPU sees what its actor sees. `threads` counts on a CPU only.
    """
    defaults = {
        "VLLM_SERVER_DEV_MODE": "1",  # the routes that pause and that change weights
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "600",  # s; longer than clients keep an idle connection
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "NCCL_CUMEM_ENABLE": "0",
    }
    if args.device == "cpu":
        defaults |= {
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # or it pins itself to cores that the trainer uses
            "TORCH_COMPILE_DISABLE": "1",  # compiling costs 20 s at the first request and gains nothing in eager mode
            "CUDA_VISIBLE_DEVICES": "",
        }
        if args.rollout_num_gpus_per_engine == 1:
            defaults["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # one process less, 10 s less start
    own = {name: os.environ.get(name, value) for name, value in defaults.items()}
    if len(devices) > 1:
        own["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, devices))
    environment = {name: value for name, value in os.environ.items() if not _is_allocator(name)} | own
    environment |= thread_environment(threads)
    if args.device == "cuda":
        # Then vLLM loads weights with several threads and serves with one: with more, each step of a busy engine waits for them to wake.
        for name in THREAD_COUNTS:
            environment.pop(name, None)
    return environment


def check_kernels(args: Namespace) -> None:
    """Raise EngineError where the server would come up and die at its first request: heads that no CPU kernel has."""
    if args.device == "cpu" and args.kv_channels is not None and args.kv_channels not in CPU_HEAD_SIZES:
        raise EngineError(
            f"vLLM on a CPU has no attention for heads of {args.kv_channels}",
            where=f"{args.hf_checkpoint}/config.json",
            hint=f"it has {', '.join(map(str, CPU_HEAD_SIZES))}",
        )


def _is_allocator(name: str) -> bool:
    # The trainer's allocator settings break the engine's sleep mode.
    return name.startswith("PYTORCH_") and name.endswith("ALLOC_CONF")
