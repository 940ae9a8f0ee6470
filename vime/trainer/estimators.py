"""From rewards, log-probabilities and values to the advantages (and returns) of one rank's samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vime.errors import VimeError
from vime.hooks import SPECS, accepts, load_hook
from vime.trainer.advantages import moments, whiten
from vime.trainer.kl import kl_estimate
from vime.trainer.reduce import over_tokens
from vime.trainer.returns import discounted_returns, generalized_advantages, reward_at_end

#: Estimators whose rewards are normalised within groups; a group's mean alone for the last.
GROUP_RELATIVE = ("grpo", "gspo", "cispo")
GROUP_MEAN = "reinforce_plus_plus_baseline"
#: Estimators that take a KL penalty token by token.
KL_IN_REWARD = ("reinforce_plus_plus", GROUP_MEAN, "ppo")

TrainData = dict[str, list[Any]]


def needs_old_log_probs(args: Any) -> bool:
    """Whether advantages depend on the policy's log-probabilities, so that all must be known before the first step."""
    return bool(
        args.kl_coef
        or args.use_opd
        or args.loss_type == "custom_loss"
        or args.custom_advantage_function_path
        or args.rollout_data_postprocess_path
    )


def needs_reference(args: Any) -> bool:
    """Whether a reference policy is compared with, in the loss or in the reward."""
    return bool(args.use_kl_loss or args.kl_coef)


def compute(args: Any, data: TrainData, sum_over_ranks: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, float]:
    """Set data["advantages"], and data["returns"] where the estimator has them: fp32 [response_length] a sample, on the CPU.

    Reads rewards, loss_masks, response_lengths, and where the flags need them old_log_probs, ref_log_probs,
    teacher_log_probs and values. `sum_over_ranks` adds a tensor over data-parallel ranks and is called on each of them,
    also on one without samples. Returns metrics as sums over kept tokens of these samples. Raises VimeError for columns
    that are missing or, after a user's own function, of another length.
    """
    if args.custom_advantage_function_path:
        load_hook("custom_advantage_function_path", args.custom_advantage_function_path)(args, data)
        check_lengths(data, ("advantages",), f"--custom-advantage-function-path {args.custom_advantage_function_path}")
        return {}
    lengths = data["response_lengths"]
    masks = torch.tensor([float(m) for mask in data["loss_masks"] for m in mask])
    advantages, returns = _estimate(args, data, lengths, masks)
    metrics: dict[str, float] = {}
    if args.use_opd:
        if "teacher_log_probs" not in data:
            raise VimeError("--use-opd, but the samples carry no teacher_log_probs")
        gap = _flat(data["old_log_probs"]) - _flat(data["teacher_log_probs"])
        # A tool's tokens were not the student's choice, and a masked teacher entry may be anything.
        gap = torch.where(masks != 0, gap, torch.zeros_like(gap))
        advantages = advantages - args.opd_kl_coef * gap
        metrics["opd_reverse_kl"] = gap.sum().item()
    if args.normalize_advantages:
        advantages = whiten(advantages, masks, sum_over_ranks(moments(advantages, masks)))
    data["advantages"] = list(advantages.split(lengths))
    if returns is not None:
        data["returns"] = list(returns.split(lengths))
    return metrics


def _estimate(
    args: Any, data: TrainData, lengths: list[int], masks: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    rewards = [float(r) for r in data["rewards"]]
    match args.advantage_estimator:
        case "grpo" | "gspo" | "cispo":
            return over_tokens(torch.tensor(rewards), lengths), None
        case "on_policy_distillation":
            return torch.zeros(sum(lengths)), None
        case "reinforce_plus_plus":
            # arXiv 2501.03262: the reward at the last kept token, the penalty at each, discounted to the end.
            by_token = reward_at_end(rewards, lengths, masks) - _penalty(args, data, masks)
            returns = discounted_returns(by_token, lengths, args.gamma)
            return returns, returns
        case "reinforce_plus_plus_baseline":
            return over_tokens(torch.tensor(rewards), lengths) - _penalty(args, data, masks), None
        case "ppo":
            by_token = reward_at_end(rewards, lengths) - _penalty(args, data, masks)
            return generalized_advantages(by_token, _flat(data["values"]), lengths, args.gamma, args.lambd)
    raise VimeError(f"--advantage-estimator {args.advantage_estimator} is not supported")


def _penalty(args: Any, data: TrainData, masks: torch.Tensor) -> torch.Tensor:
    """kl_coef x KL(old || ref) at each kept token, 0 elsewhere [tokens]."""
    if not args.kl_coef:
        return torch.zeros_like(masks)
    kl = kl_estimate(_flat(data["old_log_probs"]), _flat(data["ref_log_probs"]), args.kl_loss_type)
    return args.kl_coef * torch.where(masks != 0, kl, torch.zeros_like(kl))


def postprocess(args: Any, rollout_id: int, data: TrainData) -> None:
    """Let --rollout-data-postprocess-path change the columns. Raises VimeError when advantages no longer fit."""
    option = "rollout_data_postprocess_path"
    hook = load_hook(option, args.rollout_data_postprocess_path)
    if accepts(hook, SPECS[option].calls[0]):
        hook(args, rollout_id, data)
    else:
        hook(args, data)
    check_lengths(data, ("advantages",), f"--rollout-data-postprocess-path {args.rollout_data_postprocess_path}")


def check_lengths(data: TrainData, columns: tuple[str, ...], where: str) -> None:
    """Raise VimeError unless every sample has one value a response token in each of `columns`."""
    for name in columns:
        if name not in data:
            raise VimeError(f"it did not set rollout_data[{name!r}]", where=where)
        for index, column, length in zip(data["sample_indices"], data[name], data["response_lengths"], strict=True):
            if len(column) != length:
                raise VimeError(
                    f"{name} of sample {index} has {len(column)} values for {length} response tokens", where=where
                )


def _flat(column: list[Any]) -> torch.Tensor:
    return torch.cat([torch.as_tensor(values, dtype=torch.float32).cpu() for values in column] or [torch.zeros(0)])
