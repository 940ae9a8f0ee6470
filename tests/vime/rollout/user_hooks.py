"""Functions of a user, for the tests of hooks. Imported by dotted path through `sys.modules`."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

from vime.errors import EngineTimeout
from vime.rollout.context import current
from vime.rollout.types import DynamicFilterOutput

seen: list[Any] = []


async def generate_two_turns(args: Any, sample: Any, sampling_params: Any) -> Any:
    first = await current().generate(sample.tokens, sampling_params, sample.session_id)
    sample.append_response_tokens(args, first.token_ids, first.logprobs)
    sample.append_response_tokens(args, [7, 8], None, trainable=False, text="tool")
    sample.response, sample.status = "two turns", sample.Status.COMPLETED
    return sample


async def generate_fan_out(args: Any, sample: Any, sampling_params: Any, evaluation: bool = False) -> list[Any]:
    parts = []
    for text in ([10], [11, 12]):
        part = copy.deepcopy(sample)
        part.append_response_tokens(args, text, [-0.1] * len(text))
        part.status = sample.Status.COMPLETED
        parts.append(part)
    return parts


async def generate_abort_first(args: Any, sample: Any, sampling_params: Any) -> Any:
    seen.append(sample.index)
    sample.append_response_tokens(args, [9], [-0.1])
    sample.status = sample.Status.ABORTED if seen.count(sample.index) == 1 else sample.Status.COMPLETED
    return sample


async def generate_timeout_first(args: Any, sample: Any, sampling_params: Any) -> Any:
    seen.append(sample.index)
    sample.append_response_tokens(args, [9], [-0.1])
    if seen.count(sample.index) == 1:
        raise EngineTimeout("slow")
    sample.status = sample.Status.COMPLETED
    return sample


async def generate_crash(args: Any, sample: Any, sampling_params: Any) -> Any:
    raise ZeroDivisionError("a bug of the user's")


async def reward_by_label(args: Any, sample: Any) -> Any:
    kind = int(sample.label)
    if kind in (0, 1):
        raise RuntimeError("no")
    return {2: None, 3: float("nan"), 4: "many"}.get(kind, 1.0)


async def reward_index(args: Any, sample: Any) -> float:
    return float(sample.index or 0)


async def reward_group(args: Any, samples: Any) -> list[float]:
    return [float(len(samples))] * len(samples)


async def reward_group_short(args: Any, samples: Any) -> list[float]:
    return [0.0]


async def reward_dict(args: Any, sample: Any) -> dict[str, Any]:
    return {"score": 1.0 if sample.label == "1" else -1.0, "pred": "x"}


async def reward_never(args: Any, sample: Any) -> float:
    if sample.label == "1":
        await asyncio.Event().wait()
    return 3.0


async def reward_broken(args: Any, sample: Any) -> float:
    raise RuntimeError("the judge is down")


def keep_even(args: Any, samples: Any) -> DynamicFilterOutput:
    return DynamicFilterOutput(int(samples[0].label) % 2 == 0, "odd")


def keep_none_but_if_needed(args: Any, samples: Any) -> DynamicFilterOutput:
    return DynamicFilterOutput(False, "never", keep_when_insufficient=True)


def mark_first_removed(args: Any, samples: Any) -> None:
    samples[0][0].remove_sample = True


def note_all(args: Any, all_groups: Any, data_source: Any) -> None:
    seen.append([group[0].label for group in all_groups])


def shout(args: Any, sample: Any, *, rollout_id: Any, evaluation: bool) -> None:
    sample.metadata["hook"] = (rollout_id, evaluation)


async def shout_later(args: Any, sample: Any) -> Any:
    sample.response = sample.response.upper()
    return sample


def filter_reversed(args: Any, rollout_id: Any, buffer: Any, num_samples: int) -> Any:
    return [buffer.pop() for _ in range(min(num_samples, len(buffer)))]


def not_async(args: Any, sample: Any) -> float:
    return 0.0


def too_few(args: Any) -> None: ...


class NoMethods:
    def __init__(self, args: Any) -> None: ...
