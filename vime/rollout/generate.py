"""The default rollout function: one batch of the generation pool, its hooks and its metrics."""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from vime.data.protocol import DataSource, Group
from vime.hooks import load_hook
from vime.rollout import context as rollout_context
from vime.rollout.context import RolloutContext
from vime.rollout.evaluate import evaluate
from vime.rollout.loop import run_async
from vime.rollout.metrics import rollout_metrics, warn_of_useless_rewards
from vime.rollout.pool.pool import Pool
from vime.rollout.pool.schedules import schedule_of
from vime.rollout.pool.store import MemoryStore
from vime.rollout.types import RolloutFnEvalOutput, RolloutFnTrainOutput
from vime.sample import Sample

logger = logging.getLogger(__name__)


def generate_rollout(
    args: Namespace, rollout_id: int, data_source: DataSource, evaluation: bool = False
) -> RolloutFnTrainOutput | RolloutFnEvalOutput:
    """One rollout step, or an evaluation, with the client of ``vime.rollout.context.current()``.

    Whether groups go on running after the step is the schedule's affair (``--rollout-schedule``). Raises DataError when prompts run out,
    EngineError when engines fail for most of the step, HookError for a user's function.
    """
    context = rollout_context.current()
    if evaluation:
        return run_async(evaluate(args, context))
    return run_async(_step(args, rollout_id, data_source, context))


async def _step(
    args: Namespace, rollout_id: int, data_source: DataSource, context: RolloutContext
) -> RolloutFnTrainOutput:
    if context.pool is None:
        context.pool = Pool(args, context, context.store or MemoryStore(args, data_source), schedule_of(args))
    batch, report = await context.pool.batch(rollout_id)
    groups = batch.groups
    _post_process(args, groups, report.rejected, data_source)
    metrics = rollout_metrics(args, groups, report.counts, seconds=report.seconds, serving=context.serving_version)
    metrics["perf/rollout_time"] = report.wait
    warn_of_useless_rewards(args, groups)
    if rollout_id in (0, args.start_rollout_id):
        _show(groups[0][0], args)
    return RolloutFnTrainOutput(samples=groups, metrics=metrics | report.metrics())


def _post_process(args: Namespace, accepted: list[Group], rejected: list[Group], source: DataSource) -> None:
    if (sample_filter := _hook(args, "rollout_sample_filter_path")) is not None:
        sample_filter(args, accepted)
    if (process := _hook(args, "rollout_all_samples_process_path")) is not None:
        process(args, [*accepted, *rejected], source)


def _hook(args: Namespace, option: str) -> Callable[..., Any] | None:
    path = getattr(args, option)
    return load_hook(option, path) if path else None


def _show(sample: Sample, args: Namespace) -> None:
    """Public report slime#1527: a reader must be able to see what is scored against what."""
    logger.info(
        "first sample: prompt %r, response %r, label %r, reward %r (%s)",
        sample.prompt, sample.response, sample.label, sample.reward, args.custom_rm_path or args.rm_type,
    )  # fmt: skip
