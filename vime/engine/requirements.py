"""What training needs of a server, judged by the configuration that the server itself reports, ours or an external one."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

from vime.errors import EngineError

CENTERING_PATCH = "vllm-score-centering.patch"


def needs_more_than_log_probs(args: Namespace) -> bool:
    """Whether the flags ask an engine to record anything that a server does not report unasked."""
    return bool(
        args.rollout_top_p < 1
        or args.rollout_top_k != -1
        or args.use_score_centering
        or args.use_rollout_routing_replay
    )


def check(args: Namespace, config: Mapping[str, Any], where: str) -> None:
    """Raise EngineError, one line, for the first thing that the server at `where` does not do.

    `config` is vLLM's configuration as nested plain values (`EngineControl.configuration`). Environment variables and
    command lines are not looked at: what counts is what the server runs with.
    """
    for title, hint in _missing(args, config.get("model_config") or {}):
        raise EngineError(title, where=where, hint=hint)


def _missing(args: Namespace, model: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    mode = model.get("logprobs_mode")
    if mode != "processed_logprobs":
        yield (
            f"the server reports {mode or 'unknown'} log-probabilities, training needs those that were sampled from",
            "start it with --logprobs-mode processed_logprobs",
        )
    if args.rollout_top_p < 1 or args.rollout_top_k != -1:
        if not model.get("return_sampling_mask"):
            yield (
                "the server does not record which tokens top-p and top-k left to sample from",
                "start it with --return-sampling-mask",
            )
        if args.use_score_centering and not model.get("return_sampling_mask_logprobs"):
            without = "return_sampling_mask_logprobs" not in model
            yield (
                "the server does not return the sampler's log-probabilities on its support",
                f"its vLLM needs {CENTERING_PATCH}" if without else "start it with --return-sampling-mask-logprobs",
            )
    elif args.use_score_centering and 0 <= model.get("max_logprobs", 0) <= args.score_centering_top_k:
        yield (
            f"the server returns at most {model.get('max_logprobs', 0)} log-probabilities a token, "
            f"--score-centering-top-k {args.score_centering_top_k} needs one more than that",
            f"start it with --max-logprobs {args.score_centering_top_k + 1}",
        )
    if args.use_rollout_routing_replay and not model.get("enable_return_routed_experts"):
        yield "the server does not return routed experts", "start it with --enable-return-routed-experts"
