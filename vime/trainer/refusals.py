"""Combinations of flags that the trainer cannot compute: refused by name, since ignoring one would train something else."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from vime.errors import VimeError
from vime.trainer.estimators import KL_IN_REWARD
from vime.trainer.objective import ICEPOP, loss_kind

log = logging.getLogger(__name__)

#: Megatron's other ways to say what lies on which stage.
_OTHER_STAGES = (
    "pipeline_model_parallel_layout",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
)


def check_flags(args: Any) -> None:
    """Raise VimeError for the first combination that is not supported; warn of what is legal but rarely meant."""
    for title, hint in _refusals(args):
        raise VimeError(title, hint=hint)
    if args.loss_type == "policy_loss" and loss_kind(args) == "cispo" and args.eps_clip < 1:
        log.warning(
            "--eps-clip %s cuts CISPO's weights from below too; the paper's form is --eps-clip 1", args.eps_clip
        )
    if args.loss_type == "policy_loss" and args.eps_clip_c is not None and loss_kind(args) not in ("ppo", "gspo"):
        log.warning("--eps-clip-c has no effect with %s", loss_kind(args))


def _refusals(args: Any) -> Iterator[tuple[str, str | None]]:
    if args.kl_coef and not (args.advantage_estimator in KL_IN_REWARD or args.custom_advantage_function_path):
        yield (
            f"--kl-coef changes rewards token by token, which --advantage-estimator {args.advantage_estimator} does not have",
            "use --use-kl-loss with --kl-loss-coef",
        )
    if args.advantage_estimator == "on_policy_distillation" and not args.use_opd:
        yield "--advantage-estimator on_policy_distillation needs --use-opd", "its only signal is the teacher's"
    if args.custom_tis_function_path and not (args.use_tis or args.get_mismatch_metrics):
        yield "--custom-tis-function-path has no effect without --use-tis or --get-mismatch-metrics", None
    if args.loss_type == "custom_loss" and (args.use_opsm or args.use_tis or args.use_score_centering):
        yield "--loss-type custom_loss leaves no place for --use-opsm, --use-tis and --use-score-centering", None
    if args.loss_type == "custom_loss" and args.context_parallel_size not in (None, 1):
        yield "--loss-type custom_loss needs the logits of whole sequences", "use --context-parallel-size 1"
    if (args.pipeline_model_parallel_size or 1) > 1:
        yield from _pipeline(args)
    if args.disable_compute_advantages_and_returns and args.loss_type == "policy_loss":
        yield "--disable-compute-advantages-and-returns leaves --loss-type policy_loss without advantages", None
    if args.use_precision_aware_optimizer:
        yield "--use-precision-aware-optimizer needs Transformer Engine's optimizer, which is not used here", None
    if args.optimizer_cpu_offload and args.device == "cuda":
        yield (
            "--optimizer-cpu-offload is not supported on a GPU",
            "--use-distributed-optimizer shares the state between ranks",
        )
    for name in ("moe_aux_loss_coeff", "moe_z_loss_coeff"):
        value = getattr(args, name, None)
        if any(value) if isinstance(value, list) else value:
            # Megatron scales its gradient by tokens, ours is already divided by those of the step.
            yield (
                f"--{name.replace('_', '-')} {getattr(args, name)} is not supported: routers learn from the policy's loss",
                None,
            )
    if args.use_score_centering:
        yield from _centering(args)


def _pipeline(args: Any) -> Iterator[tuple[str, str | None]]:
    flag = f"--pipeline-model-parallel-size {args.pipeline_model_parallel_size}"
    if args.recompute_granularity and (args.use_routing_replay or args.use_rollout_routing_replay):
        # A stage recomputes a micro-batch after it has gone forward with later ones, whose choices would be in force.
        yield f"{flag} with routing replay and --recompute-granularity is not supported", "leave one of them out"
    for name in _OTHER_STAGES:
        if getattr(args, name, None):
            yield (
                f"{flag} with --{name.replace('_', '-')} is not supported",
                "--decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers make stages uneven",
            )


def _centering(args: Any) -> Iterator[tuple[str, str | None]]:
    """The control term is the sampler's mean of one known loss: whatever changes loss or sampler besides breaks it."""
    own = args.custom_tis_function_path
    if own and own != ICEPOP:
        yield f"--use-score-centering cannot know the weights of --custom-tis-function-path {own}", f"{ICEPOP} is known"
