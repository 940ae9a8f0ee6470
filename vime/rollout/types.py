"""What rollout functions and filters return."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from vime.errors import HookError
from vime.sample import Sample


@dataclass
class RolloutFnTrainOutput:
    """`samples`: groups, each all answers to one prompt. `metrics`: names with their axis in front (rollout/...)."""

    samples: list[list[Sample]]
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass
class RolloutFnEvalOutput:
    """`data`: dataset name -> {"rewards": floats, "truncated": bools, "samples": Samples}, one entry for each answer."""

    data: dict[str, dict[str, Any]]
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class DynamicFilterOutput:
    """`reason` is a short word that metrics count by. `keep_when_insufficient`: keep the group after all rather than draw another batch."""

    keep: bool
    reason: str | None = None
    keep_when_insufficient: bool = False


def flatten(groups: Iterable[Any]) -> list[Sample]:
    """The samples of nested lists, in order."""
    flat: list[Sample] = []
    for item in groups:
        if isinstance(item, Sample):
            flat.append(item)
        else:
            flat += flatten(item)
    return flat


def train_output(result: Any, path: str) -> RolloutFnTrainOutput:
    """What a user's rollout function returned, as the typed output. A bare list of groups is slime's older form. Raises HookError."""
    if isinstance(result, RolloutFnTrainOutput):
        return result
    if isinstance(result, list) and all(isinstance(sample, Sample) for sample in flatten(result)):
        return RolloutFnTrainOutput(
            samples=[flatten(group if isinstance(group, list) else [group]) for group in result]
        )
    raise HookError(
        f"{path} returned a {type(result).__name__}",
        hint="return RolloutFnTrainOutput(samples, metrics) or a list of groups",
    )


def eval_output(result: Any, path: str) -> RolloutFnEvalOutput:
    """The same for evaluation; a bare dict is the older form."""
    if isinstance(result, RolloutFnEvalOutput):
        return result
    if isinstance(result, dict):
        return RolloutFnEvalOutput(data=result)
    raise HookError(
        f"{path} returned a {type(result).__name__}",
        hint="return RolloutFnEvalOutput(data, metrics) or a dict of datasets",
    )
