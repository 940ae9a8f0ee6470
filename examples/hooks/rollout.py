"""Steps, data and filters."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from vime.data.protocol import DataSource, Group
from vime.data.source import RolloutDataSourceWithBuffer
from vime.rollout.generate import generate_rollout
from vime.rollout.types import DynamicFilterOutput, RolloutFnEvalOutput, RolloutFnTrainOutput


def best_and_worst(
    args: Namespace, rollout_id: int, data_source: DataSource, evaluation: bool = False
) -> RolloutFnTrainOutput | RolloutFnEvalOutput:
    """--rollout-function-path: the default step, of which only each group's best and worst answer are trained on.

    The others stay, so that the normalisation within the group sees them, with their loss masked.
    """
    output = generate_rollout(args, rollout_id, data_source, evaluation)
    if isinstance(output, RolloutFnEvalOutput):
        return output
    for group in output.samples:
        ranked = sorted(group, key=lambda sample: sample.get_reward_value(args))
        for middle in ranked[1:-1]:
            middle.remove_sample = True
    return output


def labels_only(
    args: Namespace, rollout_id: int, data_source: DataSource, evaluation: bool = True
) -> RolloutFnEvalOutput:
    """--eval-function-path: an evaluation that asks nothing of the engines: how long are the reference answers?"""
    groups = data_source.get_samples(args.rollout_batch_size)
    data_source.add_samples(groups)  # given back: an evaluation uses no prompts up
    samples = [group[0] for group in groups]
    rewards = [float(len(str(sample.label))) for sample in samples]
    return RolloutFnEvalOutput(
        {"labels": {"rewards": rewards, "truncated": [False] * len(samples), "samples": samples}}
    )


class EasyFirst(RolloutDataSourceWithBuffer):
    """--data-source-path: the default source with each batch ordered from short to long prompts (a curriculum within the batch)."""

    def get_samples(self, num_samples: int) -> list[Group]:
        return sorted(super().get_samples(num_samples), key=lambda group: len(group[0].tokens))


def newest_first(args: Namespace, rollout_id: int | None, buffer: list[Group], num_samples: int) -> list[Group]:
    """--buffer-filter-path: what was put back last is dealt first, since its tokens are of the newest weights."""
    return [buffer.pop() for _ in range(min(num_samples, len(buffer)))]


def not_too_easy(args: Namespace, samples: list[Any], **_: Any) -> DynamicFilterOutput:
    """--dynamic-sampling-filter-path: prompts that every answer gets right teach nothing; another is drawn instead."""
    rewards = [sample.get_reward_value(args) for sample in samples]
    return DynamicFilterOutput(keep=min(rewards) < 1.0, reason="solved")


def drop_truncated(args: Namespace, samples: list[Group]) -> None:
    """--rollout-sample-filter-path: answers that ran out of tokens count for their group's mean, but are not trained on."""
    for group in samples:
        for sample in group:
            sample.remove_sample |= sample.status == sample.Status.TRUNCATED  # type: ignore[attr-defined]


#: Prompt text -> how often it was dealt.
dealt: dict[str, int] = {}


def count_prompts(args: Namespace, all_groups: Sequence[Group], data_source: DataSource) -> None:
    """--rollout-all-samples-process-path: how often each prompt was dealt, also when the filter dropped its answers."""
    for group in all_groups:
        prompt = str(group[0].prompt)
        dealt[prompt] = dealt.get(prompt, 0) + 1
