"""From flags to the scalar that is minimised: which losses, which coefficients, which metrics."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from vime.hooks import load_hook
from vime.trainer import losses, mismatch
from vime.trainer.batching import MicroBatch
from vime.trainer.kl import kl_estimate
from vime.trainer.losses import TokenLoss
from vime.trainer.reduce import weighted_sum
from vime.trainer.scorer import TokenScores

Metrics = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Objective:
    """`loss` is this micro-batch's share of the step's loss (shares add). `metrics` are shares too, detached.

    `token_loss` [tokens] before reduction serves to name the sample that went wrong; None where a hook hides it.
    """

    loss: torch.Tensor
    metrics: Metrics
    token_loss: torch.Tensor | None = None


def columns_needed(args: Any) -> tuple[str, ...]:
    """Per-token columns that the objective reads, beside masks, weights and the old policy's log-probabilities.

    A user's own loss gets all there are.
    """
    if args.loss_type == "sft_loss":
        return ()
    if args.loss_type == "custom_loss":
        return ("advantages", "returns", "values", "rollout_log_probs", "ref_log_probs", "teacher_log_probs")
    needed = ["advantages"]
    if uses_engine_log_probs(args):
        needed.append("rollout_log_probs")
    if args.use_kl_loss:
        needed.append("ref_log_probs")
    return tuple(needed)


def uses_engine_log_probs(args: Any) -> bool:
    """Whether the loss weighs tokens by what the engine thought of them."""
    return bool(args.use_tis or args.get_mismatch_metrics)


def loss_kind(args: Any) -> str:
    """ppo, gspo, cispo or reinforce. Score centering is a control term of the plain score, so it goes with reinforce."""
    if args.use_score_centering:
        return "reinforce"
    of_estimator = args.advantage_estimator if args.advantage_estimator in ("gspo", "cispo") else "ppo"
    return args.pg_loss_type or of_estimator


def weight_rule(args: Any) -> mismatch.Rule | None:
    """How the flags turn a ratio of trainer and engine into a weight; None without correction or with a user's own."""
    if not args.use_tis:
        return None
    if args.custom_tis_function_path is None:
        return mismatch.truncated(args.tis_clip_low, args.tis_clip)
    if args.custom_tis_function_path == ICEPOP:
        return mismatch.windowed(args.tis_clip_low, args.tis_clip)
    return None


#: The masked form of --use-tis, given as --custom-tis-function-path.
ICEPOP = "vime.trainer.corrections.icepop"


def evaluate(args: Any, batch: MicroBatch, scores: TokenScores) -> Objective:
    """The objective of `--loss-type` on one micro-batch, for the losses that take log-probabilities."""
    compute = sft_objective if args.loss_type == "sft_loss" else policy_objective
    return compute(args, batch, scores)


def sft_objective(args: Any, batch: MicroBatch, scores: TokenScores) -> Objective:
    token = losses.negative_log_likelihood(scores.log_probs)
    loss = weighted_sum(token.loss, batch.weights)
    return Objective(loss, {"loss": loss.detach(), "entropy_loss": _mean(scores.entropy, batch)}, token.loss.detach())


def policy_objective(args: Any, batch: MicroBatch, scores: TokenScores) -> Objective:
    """Policy gradient, minus entropy bonus, plus KL penalty; optionally corrected for the engine's policy and centred.

    Without an `old_log_probs` column the policy has not moved since sampling, so the current one, detached, is the old.
    """
    columns, log_probs = batch.columns, scores.log_probs
    old = columns.get("old_log_probs", log_probs.detach())
    token = policy_loss(args, batch, log_probs, old)
    policy, metrics = token.loss, {"pg_clipfrac": _mean(token.clipped, batch), "ppo_kl": _mean(old - log_probs, batch)}
    if args.use_opsm:
        keep = losses.off_policy_sequence_mask(
            log_probs - old, columns["advantages"], batch.masks, batch.lengths, args.opsm_delta
        )
        policy = policy * keep
        metrics["opsm_clipfrac"] = _mean(1 - keep, batch)
    weights = batch.weights
    if "rollout_log_probs" in columns:
        judged = log_probs.detach() if loss_kind(args) == "reinforce" else old
        policy, weights, more = _corrected(args, batch, policy, judged)
        metrics |= more
    if scores.centering is not None:
        # A times (score of the sampled token - its mean under the sampler).
        policy = policy + columns["advantages"] * scores.centering.term
        metrics |= {
            "sc_correction": _mean(scores.centering.term, batch),
            "sc_sampler_head_mass": _mean(scores.centering.sampler_mass, batch),
            "sc_train_head_mass": _mean(scores.centering.train_mass, batch),
        }
    policy_share = _reducer(args, batch, weights)(policy)
    loss, total = policy_share, policy
    entropy_share = weighted_sum(scores.entropy, weights)
    if args.entropy_coef:
        loss = loss - args.entropy_coef * entropy_share
        total = total - args.entropy_coef * scores.entropy
    if "ref_log_probs" in columns:
        importance = torch.exp(log_probs - old) if args.use_unbiased_kl else None
        kl = kl_estimate(log_probs, columns["ref_log_probs"], args.kl_loss_type, importance)
        metrics["kl_loss"] = _mean(kl, batch)
        loss = loss + args.kl_loss_coef * weighted_sum(kl, weights)
        total = total + args.kl_loss_coef * kl
    metrics |= {
        "loss": loss.detach(),
        "pg_loss": policy_share.detach(),
        "entropy_loss": _mean(scores.entropy, batch),
    }
    return Objective(loss, metrics, total.detach())


def policy_loss(args: Any, batch: MicroBatch, log_probs: torch.Tensor, old: torch.Tensor) -> TokenLoss:
    """The uncorrected loss of `loss_kind` at each token."""
    advantages, log_ratio = batch.columns["advantages"], log_probs - old
    high = args.eps_clip if args.eps_clip_high is None else args.eps_clip_high
    match loss_kind(args):
        case "reinforce":
            return losses.reinforce(log_probs, advantages)
        case "cispo":
            return losses.cispo(log_probs, log_ratio, advantages, args.eps_clip, high)
        case "gspo":
            log_ratio = losses.sequence_log_ratio(log_ratio, batch.masks, batch.lengths)
    return losses.ppo_clip(log_ratio, advantages, args.eps_clip, high, args.eps_clip_c)


def value_objective(args: Any, batch: MicroBatch, values: torch.Tensor) -> Objective:
    """The critic's loss on returns; values fp32 [response tokens]."""
    token = losses.clipped_value_loss(values, batch.columns["values"], batch.columns["returns"], args.value_clip)
    loss = weighted_sum(token.loss, batch.weights)
    metrics = {
        "value_loss": loss.detach(),
        "value_clipfrac": _mean(token.clipped, batch),
        "values": _mean(values, batch),
        "returns": _mean(batch.columns["returns"], batch),
    }
    return Objective(loss, metrics, token.loss.detach())


def custom_objective(args: Any, batch: MicroBatch, logits: torch.Tensor) -> Objective:
    """--custom-loss-function-path on fp32 logits [response tokens, this rank's columns], already divided by temperature.

    The hook's `batch` has per-sample lists and `targets`, the id that each row of logits is for.
    """
    hook = _hook("custom_loss_function_path", args.custom_loss_function_path)
    columns = {name: list(column.split(batch.lengths)) for name, column in batch.columns.items()}
    given = columns | {
        "loss_masks": list(batch.masks.split(batch.lengths)),
        "response_lengths": batch.lengths,
        "total_lengths": batch.totals,
        "targets": batch.targets,
        "samples": batch.samples,
    }
    # Hooks return what slime's do, a sum over the samples given; the step's denominator is ours.
    share, measured = hook(args, given, logits, lambda x: weighted_sum(x, batch.weights * batch.denominator))
    loss = share / batch.denominator
    shares = {name: torch.as_tensor(value).detach() / batch.denominator for name, value in measured.items()}
    return Objective(loss, shares | {"loss": loss.detach()})


def _corrected(
    args: Any, batch: MicroBatch, policy: torch.Tensor, judged: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, Metrics]:
    """(policy loss, weights, metrics) after the correction for the engine's policy.

    Masked tokens (tools) carry no engine probability: only weighted ones are looked at.
    """
    engine = batch.columns["rollout_log_probs"]
    ratio = mismatch.ratios(judged, engine, batch.masks, batch.lengths, "token")
    metrics = {"ois": _mean(ratio, batch)}
    if args.custom_tis_function_path is not None:
        hook = _hook("custom_tis_function_path", args.custom_tis_function_path)
        changed, masks, measured = hook(
            args,
            pg_loss=policy,
            train_log_probs=list(judged.split(batch.lengths)),
            rollout_log_probs=list(engine.split(batch.lengths)),
            loss_masks=list(batch.masks.split(batch.lengths)),
            total_lengths=batch.totals,
            response_lengths=batch.lengths,
        )
        metrics |= {name: _mean(_flat(value), batch) for name, value in measured.items()}
        if args.get_mismatch_metrics:
            return policy, batch.weights, metrics
        # Only the numerator follows the hook's masks: rejected tokens must not make the others weigh more.
        weights = batch.weights if masks is None else batch.weights * _flat(masks).to(batch.weights)
        return changed, weights, metrics
    rule = weight_rule(args)
    assert rule is not None
    weight = rule(ratio)
    metrics |= {
        "tis": _mean(weight, batch),
        "tis_abs": _mean((weight - 1).abs(), batch),
        "tis_clipfrac": _mean((weight != ratio).to(ratio.dtype), batch),
    }
    return policy * weight, batch.weights, metrics


def _reducer(args: Any, batch: MicroBatch, weights: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    if args.custom_pg_loss_reducer_function_path is None:
        return lambda values: weighted_sum(values, weights)
    hook = _hook("custom_pg_loss_reducer_function_path", args.custom_pg_loss_reducer_function_path)
    masks = (batch.masks * (weights != 0)).split(batch.lengths)
    reduce = hook(batch.totals, batch.lengths, list(masks), args.calculate_per_token_loss)
    return lambda values: reduce(values) / batch.denominator


@functools.cache
def _hook(option: str, path: str) -> Callable[..., Any]:
    return load_hook(option, path)


def _flat(values: Any) -> torch.Tensor:
    return values if isinstance(values, torch.Tensor) else torch.cat(list(values))


def _mean(values: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
    return weighted_sum(values.detach(), batch.weights)
