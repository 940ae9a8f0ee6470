"""Checks of sampling, losses and corrections."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from vime.arguments.model_shape import read_hf_config
from vime.arguments.vllm import engine_options
from vime.errors import Problem
from vime.rollout.sampling import cuts_distribution


def sampling(args: Namespace) -> Iterator[Problem]:
    if args.rollout_temperature <= 0:
        yield Problem(
            f"--rollout-temperature {args.rollout_temperature}",
            "it must be over 0: greedy answers are not samples of a policy",
        )
    # What evaluation takes over from rollouts is told once.
    for name in ("rollout_top_p", *({"eval_top_p"} & args.given)):
        if not 0 < getattr(args, name) <= 1:
            yield Problem(f"--{name.replace('_', '-')} {getattr(args, name)}", "it must be in (0, 1]")
    for name in ("rollout_top_k", *({"eval_top_k"} & args.given)):
        if getattr(args, name) != -1 and getattr(args, name) < 1:
            yield Problem(f"--{name.replace('_', '-')} {getattr(args, name)}", "-1 for all tokens, or at least 1")
    if cuts_distribution(args) and args.device == "cpu" and args.model_groups[0].engines:
        yield Problem(
            f"--rollout-top-p {args.rollout_top_p} and --rollout-top-k {args.rollout_top_k} on a CPU",
            "which tokens were left to sample from is recorded by vLLM's GPU model runner only",
        )
    if args.mask_offpolicy_in_partial_rollout and not args.partial_rollout:
        yield Problem("--mask-offpolicy-in-partial-rollout without --partial-rollout")
    if not 0 < args.max_failed_sample_ratio <= 1:
        yield Problem(f"--max-failed-sample-ratio {args.max_failed_sample_ratio}", "a share in (0, 1]")


def kl(args: Namespace) -> Iterator[Problem]:
    if args.kl_coef != 0 and args.kl_loss_coef != 0:
        yield Problem("--kl-coef and --kl-loss-coef are both set", "put the KL into the reward or into the loss")
    if args.kl_loss_coef != 0 and not args.use_kl_loss:
        yield Problem("--kl-loss-coef has no effect without --use-kl-loss")
    if args.use_unbiased_kl and not args.use_kl_loss:
        yield Problem("--use-unbiased-kl has no effect without --use-kl-loss")


def estimator(args: Namespace) -> Iterator[Problem]:
    if args.advantage_estimator.startswith("reinforce_plus_plus") and not args.normalize_advantages:
        yield Problem(f"--advantage-estimator {args.advantage_estimator} needs --normalize-advantages")
    if args.loss_type == "custom_loss" and not args.custom_loss_function_path:
        yield Problem("--loss-type custom_loss needs --custom-loss-function-path")
    if args.eps_clip_c is not None and args.eps_clip_c <= 1:
        yield Problem(f"--eps-clip-c {args.eps_clip_c}", "the bound of the dual clip is over 1; 3 is usual")
    if args.only_train_params_name_list and args.freeze_params_name_list:
        yield Problem("--only-train-params-name-list and --freeze-params-name-list exclude each other")


def mismatch(args: Namespace) -> Iterator[Problem]:
    if args.use_rollout_logprobs and args.use_tis and args.pg_loss_type != "reinforce":
        yield Problem(
            "--use-rollout-logprobs with --use-tis",
            "the engine's log-probabilities leave no ratio to correct; choose one, or --pg-loss-type reinforce",
        )
    if args.get_mismatch_metrics and not args.custom_tis_function_path:
        yield Problem("--get-mismatch-metrics needs --custom-tis-function-path", "that function computes them")
    if args.use_tis and not 0 <= args.tis_clip_low <= args.tis_clip:
        yield Problem(f"--tis-clip-low {args.tis_clip_low} and --tis-clip {args.tis_clip}", "0 <= low <= high")
    if args.use_rollout_routing_replay and args.device == "cpu" and args.model_groups[0].engines:
        yield Problem(
            "--use-rollout-routing-replay on a CPU",
            "routed experts are recorded by vLLM's GPU model runner only; --use-routing-replay needs no engine",
        )
    if args.use_routing_replay and args.use_rollout_routing_replay:
        yield Problem("--use-routing-replay and --use-rollout-routing-replay exclude each other")


def distillation(args: Namespace) -> Iterator[Problem]:
    if not args.use_opd:
        if args.opd_type or args.opd_teacher_load:
            yield Problem("--opd-type and --opd-teacher-load have no effect without --use-opd")
        return
    if args.opd_type is None:
        yield Problem(
            "--use-opd needs --opd-type", "vllm: the teacher is a server; megatron: it is loaded beside the actor"
        )
    if args.opd_type == "megatron":
        if args.opd_teacher_load is None:
            yield Problem("--opd-type megatron needs --opd-teacher-load")
        elif not args.assume_files and not Path(args.opd_teacher_load).exists():
            yield Problem(f"--opd-teacher-load: {args.opd_teacher_load} does not exist")
    if args.opd_type == "vllm" and args.opd_teacher_load is not None:
        yield Problem(
            "--opd-teacher-load has no effect with --opd-type vllm",
            "the teacher is a model of --vllm-config",
        )
    if args.opd_type == "vllm":
        yield from _served_teacher(args)


def _served_teacher(args: Namespace) -> Iterator[Problem]:
    teacher = next((group for group in args.model_groups[1:] if group.name == args.opd_teacher_model), None)
    if teacher is None:
        if not args.custom_rm_path and not args.custom_generate_function_path and not args.assume_files:
            yield Problem(
                f"--opd-type vllm, but --vllm-config has no frozen model {args.opd_teacher_model!r}",
                "serve one, or let a function of your own set teacher_log_probs",
            )
        return
    path = Path(teacher.path) / "config.json"
    size = read_hf_config(teacher.path).get("vocab_size") if path.is_file() else None
    if size is not None and args.vocab_size is not None and size != args.vocab_size:
        yield Problem(
            f"the teacher {teacher.path} has {size} tokens, the student {args.vocab_size}",
            "log-probabilities of tokens can only be compared over one vocabulary",
        )


def score_centering(args: Namespace) -> Iterator[Problem]:
    """Its control term is exact only for the plain policy gradient of the sampler's own distribution."""
    if not args.use_score_centering:
        return
    if args.loss_type != "policy_loss":
        yield Problem("--use-score-centering needs --loss-type policy_loss")
    if args.rollout_top_k != -1:
        yield Problem("--use-score-centering needs --rollout-top-k -1", "its own head is --score-centering-top-k")
    if args.rollout_top_p < 1 and "vllm_return_sampling_mask_logprobs" not in engine_options():
        yield Problem(
            f"--use-score-centering with --rollout-top-p {args.rollout_top_p}: the installed vLLM cannot return the sampler's "
            "log-probabilities on its support",
            "vime-sync patch apply --site-packages applies vllm-score-centering.patch",
        )
    if args.advantage_estimator in ("gspo", "cispo") or args.pg_loss_type == "ppo":
        yield Problem(
            f"--use-score-centering with {args.pg_loss_type or args.advantage_estimator}", "it centres the plain score"
        )
    for name in (
        "use_opd",
        "use_opsm",
        "get_mismatch_metrics",
        "use_unbiased_kl",
        "custom_pg_loss_reducer_function_path",
    ):
        if getattr(args, name):
            yield Problem(f"--use-score-centering with --{name.replace('_', '-')}")
    if args.use_tis and not (math.isfinite(args.tis_clip) and args.tis_clip > 0):
        yield Problem(f"--use-score-centering needs a finite --tis-clip over 0, not {args.tis_clip}")
    if args.score_centering_top_k < 1:
        yield Problem(f"--score-centering-top-k {args.score_centering_top_k}", "at least 1")


ALGORITHM_CHECKS = (sampling, kl, estimator, mismatch, distillation, score_centering)
