"""From flags to the scalar that is minimised: which losses, which coefficients, which metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from vime.errors import VimeError
from vime.trainer import losses
from vime.trainer.batching import MicroBatch
from vime.trainer.kl import kl_estimate
from vime.trainer.reduce import weighted_sum


@dataclass(frozen=True)
class Objective:
    """`loss` is this micro-batch's share of the step's loss (shares add). `metrics` are shares too, detached.

    `token_loss` [tokens] before reduction serves to name the sample that went wrong.
    """

    loss: torch.Tensor
    metrics: dict[str, torch.Tensor]
    token_loss: torch.Tensor


# Flags of algorithms that are not built yet: ignoring one would train something else than was asked for.
_NOT_BUILT = (
    "custom_loss_function_path",
    "custom_advantage_function_path",
    "custom_tis_function_path",
    "custom_pg_loss_reducer_function_path",
    "rollout_data_postprocess_path",
    "get_mismatch_metrics",
    "use_opsm",
    "use_opd",
    "use_score_centering",
    "use_routing_replay",
    "use_rollout_routing_replay",
)


def check_flags(args: Any) -> None:
    """Raise VimeError for an algorithm that the trainer does not have."""
    for flag in _NOT_BUILT:
        if getattr(args, flag):
            raise VimeError(f"--{flag.replace('_', '-')} is not supported by the trainer yet", hint="leave it out")
    if args.pg_loss_type not in (None, "ppo"):
        raise VimeError(f"--pg-loss-type {args.pg_loss_type} is not supported; supported: ppo")
    if args.kl_coef:
        raise VimeError(
            "--kl-coef changes rewards token by token, which group-relative advantages do not have",
            hint="use --use-kl-loss with --kl-loss-coef",
        )
    for flag, known in (("loss_type", ("policy_loss", "sft_loss")), ("advantage_estimator", ("grpo",))):
        value = getattr(args, flag)
        if value not in known:
            raise VimeError(f"--{flag.replace('_', '-')} {value} is not supported; supported: {', '.join(known)}")


def columns_needed(args: Any) -> tuple[str, ...]:
    """Per-token columns that the objective reads, beside masks and weights."""
    if args.loss_type == "sft_loss":
        return ()
    needed = ["advantages"]
    if args.use_tis:
        needed.append("rollout_log_probs")
    if uses_reference(args):
        needed.append("ref_log_probs")
    return tuple(needed)


def uses_reference(args: Any) -> bool:
    """Whether the objective compares with a reference policy."""
    return bool(args.use_kl_loss)


def evaluate(args: Any, batch: MicroBatch, log_probs: torch.Tensor, entropy: torch.Tensor) -> Objective:
    """The objective of `--loss-type` on one micro-batch; log_probs and entropy are fp32 [response tokens]."""
    compute = sft_objective if args.loss_type == "sft_loss" else policy_objective
    return compute(args, batch, log_probs, entropy)


def sft_objective(args: Any, batch: MicroBatch, log_probs: torch.Tensor, entropy: torch.Tensor) -> Objective:
    token = losses.negative_log_likelihood(log_probs)
    loss = weighted_sum(token.loss, batch.weights)
    return Objective(loss, {"loss": loss.detach(), "entropy_loss": _mean(entropy, batch)}, token.loss.detach())


def policy_objective(args: Any, batch: MicroBatch, log_probs: torch.Tensor, entropy: torch.Tensor) -> Objective:
    """Clipped policy gradient, minus entropy bonus, plus KL penalty; optionally corrected for the engine's policy.

    Without an `old_log_probs` column the policy has not moved since sampling, so the current one, detached, is the old.
    """
    columns = batch.columns
    old = columns.get("old_log_probs", log_probs.detach())
    high = args.eps_clip if args.eps_clip_high is None else args.eps_clip_high
    token = losses.ppo_clip(log_probs, old, columns["advantages"], args.eps_clip, high, args.eps_clip_c)
    policy = token.loss
    metrics: dict[str, torch.Tensor] = {}
    if "rollout_log_probs" in columns:
        # Masked tokens (tools) carry no engine probability: only weighted ones are looked at.
        weight, truncated = losses.importance_weight(
            old, columns["rollout_log_probs"], args.tis_clip_low, args.tis_clip
        )
        ratio = torch.exp(old.detach() - columns["rollout_log_probs"])
        metrics |= {
            "ois": _mean(ratio, batch),
            "tis": _mean(weight, batch),
            "tis_abs": _mean((weight - 1).abs(), batch),
            "tis_clipfrac": _mean(truncated, batch),
        }
        policy = policy * weight
    policy_loss = weighted_sum(policy, batch.weights)
    loss, total = policy_loss, policy
    entropy_mean = weighted_sum(entropy, batch.weights)
    if args.entropy_coef:
        loss = loss - args.entropy_coef * entropy_mean
        total = total - args.entropy_coef * entropy
    if "ref_log_probs" in columns:
        importance = torch.exp(log_probs - old) if args.use_unbiased_kl else None
        kl = kl_estimate(log_probs, columns["ref_log_probs"], args.kl_loss_type, importance)
        kl_mean = weighted_sum(kl, batch.weights)
        metrics["kl_loss"] = kl_mean.detach()
        loss = loss + args.kl_loss_coef * kl_mean
        total = total + args.kl_loss_coef * kl
    metrics |= {
        "loss": loss.detach(),
        "pg_loss": policy_loss.detach(),
        "entropy_loss": entropy_mean.detach(),
        "pg_clipfrac": _mean(token.clipped, batch),
        "ppo_kl": _mean(old - log_probs, batch),
    }
    return Objective(loss, metrics, total.detach())


def _mean(values: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
    return weighted_sum(values.detach(), batch.weights)
