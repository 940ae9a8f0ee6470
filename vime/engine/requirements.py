"""What training needs of a server, judged by the configuration that the server itself reports, ours or an external one."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

from vime.engine.command import BACKEND, WORKER_EXTENSION, engine_dtype
from vime.errors import EngineError
from vime.rollout.sampling import cuts_distribution

CENTERING_PATCH = "vllm-score-centering.patch"


def needs_more_than_log_probs(args: Namespace) -> bool:
    """Whether the flags ask an engine to record anything that a server does not report unasked."""
    return bool(cuts_distribution(args) or args.use_score_centering or args.use_rollout_routing_replay)


def check(args: Namespace, config: Mapping[str, Any], where: str) -> None:
    """Raise EngineError, one line, for the first thing that the server at `where` does not do.

    `config` is vLLM's configuration as nested plain values (`EngineControl.configuration`). Environment variables and
    command lines are not looked at: what counts is what the server runs with.
    """
    for title, hint in _missing(args, config):
        raise EngineError(title, where=where, hint=hint)


def check_external(args: Namespace, config: Mapping[str, Any], where: str) -> None:
    """Raise EngineError for the first thing that keeps a server that somebody else started from being the policy's engine."""
    for title, hint in _foreign(args, config):
        raise EngineError(title, where=where, hint=hint)


def check_teacher(args: Namespace, config: Mapping[str, Any], where: str) -> None:
    """Raise EngineError when the server cannot score texts at the rollout's temperature."""
    if (
        args.use_opd
        and args.rollout_temperature != 1.0
        and (config.get("model_config") or {}).get("max_logprobs") != -1
    ):
        raise EngineError(
            f"the teacher's log-probabilities at --rollout-temperature {args.rollout_temperature} need those of its whole vocabulary",
            where=where,
            hint="start it with --max-logprobs -1",
        )


def _foreign(args: Namespace, config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    model = config.get("model_config") or {}
    backend = (config.get("weight_transfer_config") or {}).get("backend")
    extension = (config.get("parallel_config") or {}).get("worker_extension_cls")
    if backend != BACKEND or extension != WORKER_EXTENSION:
        yield (
            "the server cannot take the trainer's weights",
            f'start it with --worker-extension-cls {WORKER_EXTENSION} --weight-transfer-config \'{{"backend": "{BACKEND}"}}\'',
        )
    dtype = str(model.get("dtype")).removeprefix("torch.")
    if dtype != engine_dtype(args):
        yield (
            f"the server computes in {dtype}, the trainer in {engine_dtype(args)}",
            f"start it with --dtype {engine_dtype(args)}",
        )
    needed, longest = args.rollout_max_context_len, model.get("max_model_len")
    if needed is not None and longest is not None and longest < needed:
        yield (
            f"the server takes {longest} tokens, --rollout-max-context-len is {needed}",
            f"start it with --max-model-len {needed}",
        )


def _missing(args: Namespace, config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    model, beside = config.get("model_config") or {}, config.get("aux_output_config") or {}
    mode = model.get("logprobs_mode")
    if mode != "processed_logprobs":
        yield (
            f"the server reports {mode or 'unknown'} log-probabilities, training needs those that were sampled from",
            "start it with --logprobs-mode processed_logprobs",
        )
    if cuts_distribution(args):
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
    if args.use_rollout_routing_replay and not beside.get("enable_return_routed_experts"):
        yield "the server does not return routed experts", "start it with --enable-return-routed-experts"
