"""All answers to one prompt: generated, passed through the sample hooks, and scored."""

from __future__ import annotations

import asyncio
import time
import uuid
from argparse import Namespace
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from vime.errors import HookError
from vime.hooks import SPECS, accepts, is_async, load_hook
from vime.rollout import answer
from vime.rollout.client import SamplingParams
from vime.rollout.context import RolloutContext
from vime.rollout.distillation import ask_teacher
from vime.rollout.rewards.score import Judge, score_group
from vime.rollout.sampling import budget
from vime.sample import Sample, Status


@dataclass(frozen=True)
class GroupTask:
    """How groups of one kind (training, or one evaluation dataset) are answered. Built once a step: hooks are loaded here."""

    args: Namespace
    context: RolloutContext
    params: SamplingParams
    judge: Judge
    evaluation: bool = False
    rollout_id: int | None = None
    generate: Callable[..., Awaitable[Any]] | None = None
    sample_hooks: tuple[Callable[..., Any], ...] = ()

    @classmethod
    def for_training(
        cls, args: Namespace, context: RolloutContext, params: SamplingParams, rollout_id: int
    ) -> GroupTask:
        return cls(
            args,
            context,
            params,
            Judge.of_run(args),
            rollout_id=rollout_id,
            generate=_generate_hook(args.custom_generate_function_path),
            sample_hooks=sample_hooks(args),
        )

    async def run(self, group: list[Sample]) -> list[Sample]:
        """`group` with answers and rewards; more samples than before where a user's function fans out.

        Unfinished samples (ABORTED) get no reward. Raises EngineError and EngineTimeout; errors of a user's generate function surface.
        """
        answered = await self._answers(group)
        for sample in answered:
            for hook in self.sample_hooks:
                await _run_hook(hook, self, sample)
        if all(sample.finished or sample.status is Status.FAILED for sample in answered):
            begun = time.time()
            await score_group(self.args, answered, self.judge, self.evaluation)
            for sample in answered:
                sample.trace.append({"name": "reward", "start": begun, "end": time.time()})
            if not self.evaluation:
                await ask_teacher(self.args, answered, self.context)
        return answered

    async def _answers(self, group: list[Sample]) -> list[Sample]:
        if self.generate is None and answer.can_share_request(self.args, group):
            return await self._shared_request(group)
        results = await _all(self._one(position, sample) for position, sample in enumerate(group))
        return [sample for result in results for sample in result]

    async def _shared_request(self, group: list[Sample]) -> list[Sample]:
        first, session = group[0], uuid.uuid4().hex
        for sample in group:
            sample.session_id = session
        ready = [
            sample for sample in group if answer.prepare(self.args, sample, self.params, self.context, self.evaluation)
        ]
        if not ready:
            return group
        params = replace(self._seeded(0).with_budget(budget(first, self.params)), n=len(group))
        answers = await self.context.generate_many(first.tokens, params, session)
        for sample, one in zip(group, answers, strict=True):
            answer.accept(self.args, sample, one, self.context)
        return group

    async def _one(self, position: int, sample: Sample) -> list[Sample]:
        generate = _generate_hook(sample.generate_function_path) or self.generate
        params = self._seeded(position)
        if generate is None:
            if answer.prepare(self.args, sample, params, self.context, self.evaluation):
                one = await self.context.generate(
                    sample.tokens, params.with_budget(budget(sample, self.params)), sample.session_id
                )
                answer.accept(self.args, sample, one, self.context)
            return [sample]
        if sample.finished:
            return [sample]
        takes_evaluation = accepts(generate, SPECS["custom_generate_function_path"].calls[0])
        more = {"evaluation": self.evaluation} if takes_evaluation else {}
        return _siblings(sample, await generate(self.args, sample, params, **more))

    def _seeded(self, position: int) -> SamplingParams:
        if not self.args.vllm_enable_deterministic_inference:
            return self.params
        return replace(self.params, seed=self.args.rollout_seed + position)


def sample_hooks(args: Namespace) -> tuple[Callable[..., Any], ...]:
    return tuple(load_hook("rollout_sample_hook_path", path) for path in args.rollout_sample_hook_path or ())


def _generate_hook(path: str | None) -> Callable[..., Awaitable[Any]] | None:
    return load_hook("custom_generate_function_path", path) if path else None


async def _all(work: Any) -> list[Any]:
    """Results of all; at the first error the others are cancelled, so no request is left running for nobody."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def _run_hook(hook: Callable[..., Any], task: GroupTask, sample: Sample) -> None:
    """A hook changes the sample in place, or returns the same one."""
    full = SPECS["rollout_sample_hook_path"].calls[0]
    more = {"rollout_id": task.rollout_id, "evaluation": task.evaluation} if accepts(hook, full) else {}
    result = hook(task.args, sample, **more)
    result = await result if is_async(hook) else result
    if result is not None and result is not sample:
        raise HookError(
            f"{getattr(hook, '__qualname__', hook)} returned another sample", hint="change the sample in place"
        )


def _siblings(sample: Sample, result: Any) -> list[Sample]:
    """What a user's generate function returned, checked. Samples of one call are one trajectory: they share a rollout id."""
    siblings = result if isinstance(result, list) else [result]
    if not siblings or not all(isinstance(one, Sample) for one in siblings):
        raise HookError(
            f"the generate function returned {type(result).__name__}",
            where=sample.name,
            hint="return the sample or a list of samples",
        )
    for one in siblings:
        one.group_index = sample.group_index
        one.rollout_id = sample.rollout_id
        if one.status is Status.PENDING:
            raise HookError(
                "the generate function left the status at PENDING",
                where=sample.name,
                hint="set COMPLETED, TRUNCATED, ABORTED or FAILED",
            )
        if one.status is Status.FAILED:
            one.fail(one.metadata.get("failure", "generate"))
        one.validate()
    return siblings
