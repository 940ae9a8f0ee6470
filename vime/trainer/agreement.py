"""The gate before a rollout's first update: log-probabilities of trainer and engine are compared, and training is refused beyond a limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vime.rollout.pool.schedules import SYNCHRONOUS
from vime.trainer import parallel, parity
from vime.trainer.batching import TrainData
from vime.trainer.parity import LayerReport, ParityReport

#: Sequences whose layers are compared to say where a difference begins.
_SEQUENCES = 4


def check(
    args: Any,
    data: TrainData,
    served_version: str | None,
    layers: Callable[[Sequence[Sequence[int]]], LayerReport | None],
    where: str,
) -> dict[str, float]:
    """Compare the scored samples of `data` with what engines reported; collective. Returns metrics, none where there is nothing to compare.

    `served_version` is what engines call the present weights. Raises VimeError beyond `args.parity_threshold`, with what `layers` finds.
    """
    if "rollout_log_probs" not in data or args.use_rollout_logprobs or "old_log_probs" not in data:
        return {}
    report = _report(data, data["loss_masks"])
    metrics = {
        "train/train_rollout_logprob_abs_diff": report.mean,
        "train/train_rollout_logprob_abs_diff_max": report.max,
    }
    if args.partial_rollout or args.rollout_schedule != SYNCHRONOUS:
        # Answers of older weights differ for a reason: only those of the present ones can tell stale or wrong weights.
        masks = zip(data["loss_masks"], data["weight_versions"], strict=True)
        report = _report(data, [mask if _is_present(own, served_version) else [0] * len(mask) for mask, own in masks])
        if report.tokens:
            metrics["train/on_policy_logprob_abs_diff"] = report.mean
    threshold = args.parity_threshold
    if threshold is not None and not report.within(threshold):
        raise parity.refusal(report, threshold, layers(data["tokens"][:_SEQUENCES]), where)
    return metrics


def _report(data: TrainData, masks: Sequence[Sequence[int]]) -> ParityReport:
    own = parity.compare(data["old_log_probs"], data["rollout_log_probs"], masks, data["sample_indices"])
    return parity.gather(own, parallel.data_group())


def _is_present(versions: Sequence[str], served: str | None) -> bool:
    """Whether an answer sampled under `versions` is one of the present weights alone; unknown ones are taken for it."""
    return served is None or not versions or set(versions) == {served}
