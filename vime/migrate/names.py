"""What slime's flags and functions are called here: one table for the messages of the parser, the migration of scripts and the guide.

The engine flags' names are SGLang's and vLLM's. Where the meaning differs, the note says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """`to`: our flag, or None when there is none. `values`: words after the flag that become others. `note`: what a person should know.

    `group`: flags of the same group become one flag; `GROUPS` says how.
    """

    to: str | None
    note: str = ""
    group: str = ""
    values: Mapping[str, str] | None = None

    def text(self) -> str:
        """As a hint: our flag and the note."""
        if self.to is None:
            return self.note
        return self.to + (f" ({self.note})" if self.note else "")


def _gone(note: str) -> Rule:
    return Rule(None, note)


_SPECULATIVE = Rule("--vllm-speculative-config", "one JSON for all speculative options", group="speculative")
_EXPERTS = Rule(
    "--vllm-enable-expert-parallel",
    "the size follows from tensor and data parallel",
    group="experts",
)
_ALL2ALL = Rule("--vllm-all2all-backend", "one kernel for prefill and decode", group="all2all")
_OWN_KERNELS = _gone("vLLM chooses the kernels of sparse attention itself")
_PREFILL_DECODE = _gone("prefill and decode servers are linked by the JSON of --vllm-kv-transfer-config")

SGLANG_FLAGS: dict[str, Rule] = {
    "--sglang-mem-fraction-static": Rule(
        "--vllm-gpu-memory-utilization", "vLLM counts weights, activations and cache together"
    ),
    "--sglang-max-running-requests": Rule("--vllm-max-num-seqs"),
    "--sglang-context-length": Rule("--vllm-max-model-len"),
    "--sglang-chunked-prefill-size": Rule("--vllm-max-num-batched-tokens"),
    "--sglang-max-prefill-tokens": Rule("--vllm-max-num-batched-tokens"),
    "--sglang-cuda-graph-max-bs": Rule("--vllm-max-cudagraph-capture-size"),
    "--sglang-cuda-graph-max-bs-decode": Rule("--vllm-max-cudagraph-capture-size"),
    "--sglang-cuda-graph-bs": Rule("--vllm-cudagraph-capture-sizes"),
    "--sglang-disable-cuda-graph": Rule("--vllm-enforce-eager"),
    "--sglang-disable-piecewise-cuda-graph": _gone("the mode of CUDA graphs is a field of --vllm-compilation-config"),
    "--sglang-disable-prefill-cuda-graph": _gone("the mode of CUDA graphs is a field of --vllm-compilation-config"),
    "--sglang-disable-radix-cache": Rule("--vllm-no-enable-prefix-caching"),
    "--sglang-disable-overlap-schedule": Rule("--vllm-no-async-scheduling"),
    "--sglang-page-size": Rule("--vllm-block-size"),
    "--sglang-attention-backend": Rule(
        "--vllm-attention-backend",
        values={"fa3": "FLASH_ATTN", "flashinfer": "FLASHINFER", "triton": "TRITON_ATTN", "flashmla": "FLASHMLA"},
    ),
    "--sglang-mm-attention-backend": Rule("--vllm-mm-encoder-attn-backend", values={"fa3": "FLASH_ATTN"}),
    "--sglang-moe-runner-backend": Rule("--vllm-moe-backend"),
    "--sglang-fp8-gemm-runner-backend": _gone(
        "vLLM chooses the FP8 kernels itself; VLLM_USE_DEEP_GEMM=0 turns one off"
    ),
    "--sglang-ep-size": _EXPERTS,
    "--sglang-expert-parallel-size": _EXPERTS,
    "--sglang-enable-ep-moe": _EXPERTS,
    "--sglang-ep-num-redundant-experts": _gone("a field of the JSON given to --vllm-eplb-config"),
    "--sglang-tp-size": _gone("--rollout-num-gpus-per-engine divided by pipeline and data parallel gives it"),
    "--sglang-dp-size": Rule("--vllm-data-parallel-size"),
    "--sglang-enable-dp-attention": _gone(
        "--vllm-data-parallel-size with --vllm-enable-expert-parallel runs attention data parallel"
    ),
    "--sglang-enable-dp-lm-head": _gone("vLLM has no such choice"),
    "--sglang-moe-dense-tp-size": _gone("vLLM has no such choice: dense layers are cut as attention is"),
    "--sglang-moe-dp-size": _gone("vLLM has no such choice"),
    "--sglang-enable-fp32-moe-router": _gone("the router's precision follows from the model in vLLM"),
    "--sglang-moe-a2a-backend": _ALL2ALL,
    "--sglang-deepep-mode": _ALL2ALL,
    "--sglang-enable-deepep-moe": _ALL2ALL,
    "--sglang-speculative-algorithm": _SPECULATIVE,
    "--sglang-speculative-num-steps": _SPECULATIVE,
    "--sglang-speculative-num-draft-tokens": _SPECULATIVE,
    "--sglang-speculative-eagle-topk": _SPECULATIVE,
    "--sglang-speculative-draft-model-path": _SPECULATIVE,
    "--sglang-speculative-draft-attention-backend": _gone("the draft's attention is the engine's in vLLM"),
    "--sglang-nsa-decode-backend": _OWN_KERNELS,
    "--sglang-nsa-prefill-backend": _OWN_KERNELS,
    "--sglang-dsa-decode-backend": _OWN_KERNELS,
    "--sglang-dsa-prefill-backend": _OWN_KERNELS,
    "--sglang-dsa-topk-backend": _OWN_KERNELS,
    "--sglang-mamba-scheduler-strategy": _gone("vLLM's scheduler has no such choice; see --vllm-mamba-cache-mode"),
    "--sglang-disaggregation-transfer-backend": _PREFILL_DECODE,
    "--sglang-disaggregation-ib-device": _PREFILL_DECODE,
    "--sglang-watchdog-timeout": Rule("--rollout-health-check-timeout"),
    "--sglang-dist-timeout": Rule("--vllm-distributed-timeout-seconds"),
    "--sglang-router-ip": Rule("--vllm-router-ip"),
    "--sglang-router-port": Rule("--vllm-router-port"),
    "--sglang-router-policy": Rule("--router-policy"),
    "--sglang-config": Rule("--vllm-config"),
    "--sglang-enable-metrics": _gone("give --vllm-no-disable-log-stats for what vLLM counts at /metrics"),
    "--sglang-log-level": Rule("--vllm-uvicorn-log-level"),
    "--sglang-trust-remote-code": _gone("the checkpoint's code must be in transformers"),
    "--sglang-custom-pull-weights-pre-read-hook": _gone(
        "engines read what --custom-update-weight-post-write-path leaves"
    ),
}

_FROM_CHECKPOINT = "the model follows from the checkpoint's config.json"

#: Flags of slime, and of the Megatron that it patches, without a place here.
OTHER_FLAGS: dict[str, Rule] = {
    "--disable-rollout-global-dataset": _gone("give a class of your own with --data-source-path"),
    "--use-precision-aware-optimizer": _gone("it needs Transformer Engine's optimizer; moments are float32"),
    "--optimizer-cpu-offload": _gone("--use-distributed-optimizer shares the optimizer's state between ranks"),
    "--overlap-cpu-optimizer-d2h-h2d": _gone("--use-distributed-optimizer shares the optimizer's state between ranks"),
    "--prefill-num-servers": _gone("regular engines prefill and decode"),
    "--spec": _gone(_FROM_CHECKPOINT),
    "--use-gated-attention": _gone(_FROM_CHECKPOINT),
    "--post-self-attn-layernorm": _gone(_FROM_CHECKPOINT),
    "--post-mlp-layernorm": _gone(_FROM_CHECKPOINT),
    "--enable-experimental": _gone(_FROM_CHECKPOINT),
    "--no-position-embedding": _gone("deprecated in Megatron; --position-embedding-type says it"),
    "--megatron-deepgemm-forward-layers": _gone("the trainer has no DeepGEMM kernels"),
    "--megatron-deepgemm-forward-modules": _gone("the trainer has no DeepGEMM kernels"),
    "--megatron-deepgemm-moe-forward-layers": _gone("the trainer has no DeepGEMM kernels"),
    "--megatron-deepgemm-moe-forward-modules": _gone("the trainer has no DeepGEMM kernels"),
}

#: What slime sets behind a script's back and we only when told; the first element is what makes the flag unwanted.
IMPLIED: tuple[tuple[tuple[str, ...], str], ...] = (
    (("--bf16", "--fp16"), "--bf16"),
    (("--use-distributed-optimizer",), "--use-distributed-optimizer"),
)

#: Functions that are elsewhere here. Longer names first: the first that fits is taken.
PATHS: dict[str, str] = {
    "slime.rollout.filter_hub.dynamic_sampling_filters.": "vime.rollout.filters.",
    "slime.rollout.sft_rollout.generate_rollout": "vime.rollout.sft.generate_rollout",
    "slime.rollout.sglang_rollout.generate_rollout": "vime.rollout.generate.generate_rollout",
}


def slime_rule(flag: str) -> Rule | None:
    """The rule of a flag of slime, or None when it is ours as well or nobody's. Other --sglang-x are --vllm-x."""
    rule = SGLANG_FLAGS.get(flag) or OTHER_FLAGS.get(flag)
    if rule is None and flag.startswith("--sglang-"):
        return Rule(flag.replace("--sglang-", "--vllm-", 1))
    return rule


def slime_hint(flag: str) -> str | None:
    """What to use instead of a flag of slime, or None when it is not one."""
    rule = slime_rule(flag)
    if rule is None:
        return None
    return f"use {rule.text()}" if rule.to else rule.text()


def path_here(path: str) -> str:
    """Our dotted path of a function of slime; the vocabulary does for those that are not listed."""
    for old, new in PATHS.items():
        if path.startswith(old):
            return new + path.removeprefix(old)
    return path


#: Flag -> its values as written in the script.
Group = Mapping[str, Sequence[str]]


def _speculative(found: Group) -> tuple[list[str], str]:
    """SGLang's EAGLE without a draft model drafts with the checkpoint's own next-token layers, which vLLM calls mtp."""
    given = {flag.removeprefix("--sglang-speculative-"): values[0] if values else "" for flag, values in found.items()}
    steps, draft = given.get("num-steps", ""), given.get("draft-model-path")
    algorithm = given.get("algorithm", "EAGLE").strip("\"'").lower()
    if not steps.isdigit():
        return (
            [],
            f"--sglang-speculative-num-steps {steps or 'is missing'}: write the number into --vllm-speculative-config",
        )
    method = {"eagle": "eagle" if draft else "mtp", "nextn": "mtp", "eagle3": "eagle3"}.get(algorithm, algorithm)
    config = {"method": method, "num_speculative_tokens": int(steps)}
    if draft:
        config["model"] = draft.strip("\"'")
    note = "vLLM drafts a chain, no tree" if given.get("eagle-topk", "1") != "1" else ""
    return ["--vllm-speculative-config", f"'{json.dumps(config, separators=(',', ':'))}'"], note


def _experts(found: Group) -> tuple[list[str], str]:
    sizes = {values[0] for values in found.values() if values}
    if sizes == {"1"}:
        return [], "expert parallel size 1 is the default"
    return ["--vllm-enable-expert-parallel"], "the size follows from tensor and data parallel"


def _all2all(found: Group) -> tuple[list[str], str]:
    backend = next(iter(found.get("--sglang-moe-a2a-backend", ())), "deepep").strip("\"'")
    mode = next(iter(found.get("--sglang-deepep-mode", ())), "auto").strip("\"'")
    if backend == "none":
        return [], "vLLM's default exchange"
    if backend != "deepep":
        return [], f"--sglang-moe-a2a-backend {backend}: see the choices of --vllm-all2all-backend"
    kernel = "deepep_high_throughput" if mode == "normal" else "deepep_low_latency"
    note = "SGLang's auto changes kernels between prefill and decode, vLLM keeps one" if mode == "auto" else ""
    return ["--vllm-all2all-backend", kernel], note


#: Group -> how its flags become words of ours (as written in a shell), and a note. No words: nothing can be written.
GROUPS: dict[str, Callable[[Group], tuple[list[str], str]]] = {
    "speculative": _speculative,
    "experts": _experts,
    "all2all": _all2all,
}
