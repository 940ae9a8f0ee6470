"""What slime's engine flags are called here. The names are SGLang's and vLLM's; where the meaning differs, the hint says so."""

from __future__ import annotations

SGLANG_FLAGS = {
    "--sglang-mem-fraction-static": "--vllm-gpu-memory-utilization (vLLM counts weights and cache together)",
    "--sglang-max-running-requests": "--vllm-max-num-seqs",
    "--sglang-context-length": "--vllm-max-model-len",
    "--sglang-chunked-prefill-size": "--vllm-max-num-batched-tokens",
    "--sglang-cuda-graph-max-bs": "--vllm-max-cudagraph-capture-size",
    "--sglang-cuda-graph-bs": "--vllm-cudagraph-capture-sizes",
    "--sglang-disable-cuda-graph": "--vllm-enforce-eager",
    "--sglang-disable-radix-cache": "--vllm-no-enable-prefix-caching",
    "--sglang-page-size": "--vllm-block-size",
    "--sglang-ep-size": "--vllm-enable-expert-parallel (the size follows from tensor and data parallel)",
    "--sglang-expert-parallel-size": "--vllm-enable-expert-parallel (the size follows from tensor and data parallel)",
    "--sglang-dp-size": "--vllm-data-parallel-size",
    "--sglang-enable-dp-attention": "--vllm-data-parallel-size with --vllm-enable-expert-parallel",
    "--sglang-moe-a2a-backend": "--vllm-all2all-backend",
    "--sglang-deepep-mode": "--vllm-all2all-backend",
    "--sglang-enable-deepep-moe": "--vllm-all2all-backend",
    "--sglang-speculative-algorithm": "--vllm-speculative-config (one JSON for all speculative options)",
    "--sglang-speculative-num-steps": "--vllm-speculative-config (one JSON for all speculative options)",
    "--sglang-speculative-num-draft-tokens": "--vllm-speculative-config (one JSON for all speculative options)",
    "--sglang-speculative-eagle-topk": "--vllm-speculative-config (one JSON for all speculative options)",
    "--sglang-watchdog-timeout": "--rollout-health-check-timeout",
    "--sglang-router-ip": "--vllm-router-ip",
    "--sglang-router-port": "--vllm-router-port",
    "--sglang-router-policy": "--router-policy",
    "--sglang-config": "--vllm-config",
    "--sglang-disable-overlap-schedule": "--vllm-no-async-scheduling",
}

REMOVED = {
    "--disable-rollout-global-dataset": "give a class of your own with --data-source-path",
}


def slime_hint(flag: str) -> str | None:
    """What to use instead of a flag of slime, or None when it is not one."""
    if flag in REMOVED:
        return REMOVED[flag]
    if not flag.startswith("--sglang-"):
        return None
    return f"use {SGLANG_FLAGS.get(flag, flag.replace('--sglang-', '--vllm-', 1))}"
