"""The one place where rewards are called. Whatever goes wrong in one marks its sample, is counted, and leaves the run alone."""

from __future__ import annotations

import asyncio
import logging
import math as numbers
import random
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vime.errors import HookError, UsageError, VimeError
from vime.hooks import load_hook
from vime.rollout.rewards import rules
from vime.rollout.rewards.boxed import last_boxed
from vime.rollout.rewards.names import KNOWN
from vime.rollout.rewards.remote import remote_rm
from vime.sample import Sample, Status, reward_number

logger = logging.getLogger(__name__)

Rule = Callable[[str, Any, Mapping[str, Any]], Any]

RULES: dict[str, Rule] = {
    "math": rules.math,
    "dapo": rules.dapo,
    "deepscaler": rules.deepscaler,
    "f1": rules.f1,
    "gpqa": rules.gpqa,
    "reverse_word": rules.reverse_word,
}
#: Rules that take microseconds: called in place, since a task and a thread for each would cost more than they do.
_QUICK = frozenset({"f1", "gpqa", "reverse_word"})


@dataclass(frozen=True)
class Judge:
    """Which reward scores a run, or one evaluation dataset: a function of the user's, else a type that a row's metadata may override."""

    rm_type: str | None
    custom_rm_path: str | None

    @classmethod
    def of_run(cls, args: Namespace) -> Judge:
        return cls(args.rm_type, args.custom_rm_path)

    def function_of(self, sample: Sample) -> str | None:
        return sample.custom_rm_path or self.custom_rm_path

    def type_of(self, sample: Sample) -> str | None:
        """None where a user's function comes first."""
        return None if self.function_of(sample) else sample.metadata.get("rm_type") or self.rm_type


async def async_rm(args: Namespace, sample: Sample, judge: Judge | None = None) -> Any:
    """The reward of one answer: number or dict. The sample's own function comes first, then the judge's (default: the run's), then types.

    Raises UsageError for an unknown type, and whatever the reward raises.
    """
    judge = judge or Judge.of_run(args)
    if (path := judge.function_of(sample)) is not None:
        return await load_hook("custom_rm_path", path)(args, sample)
    kind = judge.type_of(sample)
    if kind is None:
        raise UsageError("no reward is named", hint="--rm-type or --custom-rm-path")
    response = sample.response
    if kind.startswith("boxed_"):
        kind, response = kind.removeprefix("boxed_"), last_boxed(response) or ""
    if kind in RULES:
        # In a thread: comparing expressions may take a while, and requests must go on.
        return await asyncio.to_thread(RULES[kind], response, sample.label, sample.metadata)
    if kind == "remote_rm":
        return await remote_rm(args, sample)
    if kind == "random":
        return random.randint(0, 1)
    if kind == "ifbench":
        return await asyncio.to_thread(_ifbench, response, sample)
    raise UsageError(f"unknown reward type {kind!r}", hint=f"known: {', '.join(KNOWN)}")


async def batched_async_rm(args: Namespace, samples: Sequence[Sample]) -> list[Any]:
    """Rewards of several answers. With --group-rm and a custom function, one call; the length of what it returns is checked."""
    if args.group_rm and args.custom_rm_path is not None:
        rewards = await load_hook("custom_rm_path", args.custom_rm_path)(args, list(samples))
        if not isinstance(rewards, list | tuple) or len(rewards) != len(samples):
            got = f"{len(rewards)} rewards" if isinstance(rewards, list | tuple) else type(rewards).__name__
            raise HookError(
                f"{args.custom_rm_path} returned {got} for {len(samples)} samples",
                hint="return a list, one entry a sample, in order",
            )
        return list(rewards)
    return list(await asyncio.gather(*(async_rm(args, sample) for sample in samples)))


async def score_group(args: Namespace, group: list[Sample], judge: Judge, evaluation: bool = False) -> None:
    """Set the reward of every finished sample that has none.

    A reward that raises, is None or no number, or takes longer than --rm-timeout marks its sample FAILED, with the reason in
    metadata["failure"]. Failed samples get the mean reward of their group: their advantage is then 0 and the mean of the others stays.
    Errors of configuration (UsageError, HookError) surface.
    """
    open_ = [sample for sample in group if sample.finished and sample.reward is None]
    if args.group_rm and args.custom_rm_path is not None and not evaluation:
        await _score_together(args, open_)
    elif all(judge.type_of(sample) in _QUICK for sample in open_):
        for sample in open_:
            _score_quickly(args, sample, judge, evaluation)
    else:
        await asyncio.gather(*(_score_one(args, sample, judge, evaluation) for sample in open_))
    _neutral_rewards(args, group, evaluation)


def _score_quickly(args: Namespace, sample: Sample, judge: Judge, evaluation: bool) -> None:
    rule = RULES[judge.type_of(sample) or ""]
    try:
        reward = rule(sample.response, sample.label, sample.metadata)
    except Exception as error:  # labels come from data: anything may be in them
        _fail(sample, "reward_error", f"{type(error).__name__}: {error}")
    else:
        _set(args, sample, reward, evaluation)


async def _score_one(args: Namespace, sample: Sample, judge: Judge, evaluation: bool) -> None:
    try:
        async with asyncio.timeout(args.rm_timeout):
            reward = await async_rm(args, sample, judge)
    except (UsageError, HookError):
        raise
    except TimeoutError:
        _fail(sample, "reward_timeout", f"took longer than {args.rm_timeout:g} s")
    except Exception as error:  # anything may come out of a reward, and none of it may end the run
        _fail(sample, "reward_error", f"{type(error).__name__}: {error}")
    else:
        _set(args, sample, reward, evaluation)


async def _score_together(args: Namespace, samples: list[Sample]) -> None:
    if not samples:
        return
    try:
        async with asyncio.timeout(args.rm_timeout):
            rewards = await batched_async_rm(args, samples)
    except (UsageError, HookError):
        raise
    except TimeoutError:
        for sample in samples:
            _fail(sample, "reward_timeout", f"took longer than {args.rm_timeout:g} s")
    except Exception as error:  # as above
        for sample in samples:
            _fail(sample, "reward_error", f"{type(error).__name__}: {error}")
    else:
        for sample, reward in zip(samples, rewards, strict=True):
            _set(args, sample, reward, evaluation=False)


def _set(args: Namespace, sample: Sample, reward: Any, evaluation: bool) -> None:
    if reward is None:
        return _fail(sample, "reward_none", "is None")
    key = (args.eval_reward_key or args.reward_key) if evaluation else args.reward_key
    try:
        value = reward_number(reward, key, sample.name)
    except VimeError as error:
        if isinstance(reward, Mapping) and reward:
            raise UsageError(str(error), hint=error.hint) from error  # a wrong --reward-key fails for every sample
        return _fail(sample, "reward_not_a_number", f"is {reward!r}")
    if not numbers.isfinite(value):
        return _fail(sample, "reward_not_finite", f"is {value}")
    sample.reward = reward
    return None


def _fail(sample: Sample, reason: str, what: str) -> None:
    sample.fail(reason)
    logger.warning("the reward of %s %s; the sample is not trained", sample.name, what)


def _neutral_rewards(args: Namespace, group: list[Sample], evaluation: bool) -> None:
    scored = [sample.get_reward_value(args, evaluation) for sample in group if sample.finished]
    mean = sum(scored) / len(scored) if scored else 0.0
    key = (args.eval_reward_key or args.reward_key) if evaluation else args.reward_key
    for sample in group:
        if sample.status is Status.FAILED and sample.reward is None:
            sample.reward = mean if key is None else {key: mean}


def _ifbench(response: str, sample: Sample) -> float:
    try:
        from ifbench import evaluation_lib  # type: ignore[import-not-found]
    except ImportError as error:
        raise UsageError(
            "reward type ifbench needs the ifbench package", hint="pip install it from its repository"
        ) from error
    example = evaluation_lib.InputExample(
        key=sample.index,
        instruction_id_list=sample.metadata["instruction_id_list"],
        prompt=sample.prompt,
        kwargs=sample.metadata["kwargs"],
    )
    return float(
        evaluation_lib.test_instruction_following_strict(example, {sample.prompt: response}).follow_all_instructions
    )
