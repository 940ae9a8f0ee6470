"""Scores."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Sequence

from vime.sample import Sample

_TOKEN_COST = 0.01


async def label_inside(args: Namespace, sample: Sample) -> float:
    """--custom-rm-path: 1 when the reference answer occurs in the response."""
    return float(str(sample.label) in sample.response)


async def agrees_with_most(args: Namespace, samples: list[Sample]) -> list[float]:
    """--custom-rm-path with --group-rm: no label is needed, an answer is right when it is the group's most frequent one
    (majority voting as a reward, arXiv 2504.16084)."""
    counts = Counter(sample.response.strip() for sample in samples)
    winner = counts.most_common(1)[0][0]
    return [float(sample.response.strip() == winner) for sample in samples]


def cheaper_is_better(args: Namespace, samples: Sequence[Sample]) -> tuple[list[float], list[float]]:
    """--custom-reward-post-process-path: each token costs a little; then the mean of the group is subtracted, no deviation divided by."""
    raw = [sample.get_reward_value(args) for sample in samples]
    priced = [reward - _TOKEN_COST * sample.response_length for reward, sample in zip(raw, samples, strict=True)]
    groups: dict[int | None, list[float]] = {}
    for sample, value in zip(samples, priced, strict=True):
        groups.setdefault(sample.group_index, []).append(value)
    means = {group: sum(values) / len(values) for group, values in groups.items()}
    return raw, [value - means[sample.group_index] for sample, value in zip(samples, priced, strict=True)]
