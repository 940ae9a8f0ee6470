"""The default rollout: draw prompts, answer and score them side by side, and stop at a full batch.

Every group that is drawn has one of these ends in a step::

    accepted                                   returned, settled "trained"
    rejected by the dynamic filter             settled "filter:<reason>"; another prompt is drawn
    requests failed too often                  settled "failed:<reason>"; another prompt is drawn
    more than the batch holds, or unfinished   back to the data source: with --partial-rollout as it stands, else as a fresh prompt
"""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vime.data.protocol import DataSource, Group, SettlingDataSource
from vime.errors import EngineError, EngineTimeout, HookError
from vime.hooks import load_hook
from vime.rollout import context as rollout_context
from vime.rollout import filters
from vime.rollout.context import RolloutContext
from vime.rollout.evaluate import evaluate
from vime.rollout.group import GroupTask
from vime.rollout.loop import run_async
from vime.rollout.metrics import rollout_metrics, warn_of_useless_rewards
from vime.rollout.sampling import train_sampling
from vime.rollout.types import RolloutFnEvalOutput, RolloutFnTrainOutput
from vime.sample import Sample, Status

logger = logging.getLogger(__name__)

#: Seconds between two sweeps of aborts while a step closes, and after which requests that do not end are an error.
_SWEEP, _CLOSE_DEADLINE = 3.0, 180.0
#: Seconds before a failed group is tried again; doubled each time.
_RETRY_WAIT = 0.5


def generate_rollout(
    args: Namespace, rollout_id: int, data_source: DataSource, evaluation: bool = False
) -> RolloutFnTrainOutput | RolloutFnEvalOutput:
    """One rollout step, or an evaluation, with the client of ``vime.rollout.context.current()``.

    Raises DataError when prompts run out, EngineError when engines fail for most of the step, HookError for a user's function.
    """
    context = rollout_context.current()
    if evaluation:
        return run_async(evaluate(args, context))
    return run_async(Rollout(args, rollout_id, data_source, context).run())


@dataclass
class Rollout:
    """One training step's worth of generation. `attempts` counts the failures of each group by its identity, `ended` samples that came back."""

    args: Namespace
    rollout_id: int
    source: DataSource
    context: RolloutContext
    accepted: list[Group] = field(default_factory=list)
    rejected: list[Group] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    running: dict[asyncio.Task[Group], Group] = field(default_factory=dict)
    attempts: Counter[int] = field(default_factory=Counter)
    ended: int = 0

    def __post_init__(self) -> None:
        self.target = self.args.rollout_batch_size
        self.task = GroupTask.for_training(self.args, self.context, train_sampling(self.args), self.rollout_id)
        self.filter = self._hook("dynamic_sampling_filter_path")

    async def run(self) -> RolloutFnTrainOutput:
        start = time.perf_counter()
        self.context.aborting = False
        try:
            while len(self.accepted) < self.target:
                self._top_up()
                await self._collect()
        finally:
            await self._close()
        self.accepted.sort(key=lambda group: group[0].index if group[0].index is not None else -1)
        self._settle(self.accepted, "trained")
        self._post_process()
        metrics = rollout_metrics(
            self.args,
            self.accepted,
            self.counts,
            seconds=time.perf_counter() - start,
            serving=self.context.serving_version,
        )
        warn_of_useless_rewards(self.args, self.accepted)
        if self.rollout_id == self.args.start_rollout_id or self.rollout_id == 0:
            _show(self.accepted[0][0], self.args)
        return RolloutFnTrainOutput(samples=self.accepted, metrics=metrics)

    def _top_up(self) -> None:
        while len(self.accepted) + len(self.running) < self.target:
            for group in self.source.get_samples(self.args.over_sampling_batch_size):
                self._start(self._within_lag(group))

    def _start(self, group: Group, wait: float = 0.0) -> None:
        for sample in group:
            if sample.start_rollout_id is None:
                sample.start_rollout_id = self.rollout_id
        # A user's function may leave its sample half written: it works on a copy.
        work = copy.deepcopy(group) if self.task.generate is not None else group
        self.running[asyncio.ensure_future(self._attempt(work, wait))] = group

    async def _attempt(self, group: Group, wait: float) -> Group:
        if wait:
            await asyncio.sleep(wait)
        return await self.task.run(group)

    async def _collect(self) -> None:
        done, _ = await asyncio.wait(self.running, return_when=asyncio.FIRST_COMPLETED)
        for task in [
            task for task in self.running if task in done
        ]:  # in the order of drawing, so that a step can be repeated
            original = self.running.pop(task)
            try:
                group = task.result()
            except EngineError as error:
                self._retry(original, "timeout" if isinstance(error, EngineTimeout) else "engine_error", error)
                continue
            unfinished = [sample for sample in group if sample.status in (Status.ABORTED, Status.PENDING)]
            if unfinished:
                if not self.args.partial_rollout:
                    for sample in unfinished:
                        sample.reset_response()
                self._retry(original, "aborted", None)
            else:
                self._take(group, original)

    def _take(self, group: Group, original: Group) -> None:
        size = len({sample.rollout_id for sample in group})
        if size != self.args.n_samples_per_prompt:
            raise HookError(
                f"a group came back with {size} trajectories; --n-samples-per-prompt is {self.args.n_samples_per_prompt}",
                hint="samples of one trajectory share their rollout_id, others must not",
            )
        failures = [str(sample.metadata["failure"]) for sample in group if sample.status is Status.FAILED]
        self.counts.update(f"rollout/failed/{reason}" for reason in failures)
        self.counts["rollout/failed_samples"] += len(failures)
        self.ended += len(group)
        self._refuse_if_most_fail()
        if len(failures) == len(group):
            return self._drop(group, f"failed:{failures[0]}")
        if len(self.accepted) >= self.target:
            return self._give_back([group], [original])
        verdict = filters.apply(self.filter, self.args, group)
        enough = len(self.accepted) + len(self.running) >= self.target
        if verdict.keep or (verdict.keep_when_insufficient and not enough):
            self.counts["rollout/dynamic_filter/kept"] += 1
            self.accepted.append(group)
            return None
        reason = verdict.reason or "filtered"
        self.counts[f"rollout/dynamic_filter/drop_{reason}"] += 1
        return self._drop(group, f"filter:{reason}")

    def _drop(self, group: Group, fate: str) -> None:
        self.rejected.append(group)
        self._settle([group], fate)

    def _retry(self, group: Group, reason: str, error: EngineError | None) -> None:
        """Public report slime#1562: one slow request ended a run at 62 %."""
        self.attempts[id(group)] += 1
        self.counts[f"rollout/retries/{reason}"] += 1
        tried = self.attempts[id(group)]
        if tried <= self.args.rollout_request_retries:
            logger.warning("group %s: %s; attempt %d follows", group[0].group_index, error or reason, tried + 1)
            self._start(group, wait=0.0 if reason == "timeout" else _RETRY_WAIT * 2 ** (tried - 1))
            return
        logger.warning("group %s is dropped after %d attempts: %s", group[0].group_index, tried, error or reason)
        self.counts["rollout/dropped_groups"] += 1
        self.counts["rollout/failed_samples"] += len(group)
        self.ended += len(group)
        self._drop(group, f"failed:{reason}")
        self._refuse_if_most_fail(error)

    def _refuse_if_most_fail(self, error: EngineError | None = None) -> None:
        """Judged once a step's worth of samples has ended, so that one bad prompt at the start decides nothing."""
        limit, failed, ended = self.args.max_failed_sample_ratio, self.counts["rollout/failed_samples"], self.ended
        if ended >= self.target * self.args.n_samples_per_prompt and failed >= limit * ended:
            causes = {
                name.rpartition("/")[2]: count
                for name, count in self.counts.items()
                if name.startswith(("rollout/failed/", "rollout/retries/"))
            }
            raise EngineError(
                f"{failed} samples of rollout {self.rollout_id} failed of {ended} (--max-failed-sample-ratio {limit:g}): "
                + ", ".join(f"{count} {reason}" for reason, count in causes.items()),
                hint=str(error) if error is not None else "the warnings above say what failed",
            )

    async def _close(self) -> None:
        """End what still runs. Unfinished groups go back to the data source; so do finished ones that nobody needs any more."""
        if not self.running:
            return
        self.context.aborting = True
        deadline = time.monotonic() + _CLOSE_DEADLINE
        pending = set(self.running)
        try:
            while pending:
                sessions = [
                    sample.session_id
                    for task in pending
                    for sample in self.running[task]
                    if sample.session_id is not None
                ]
                await self.context.client.abort(
                    None if self.task.generate is not None else list(dict.fromkeys(sessions))
                )
                _, pending = await asyncio.wait(pending, timeout=_SWEEP)
                if pending and time.monotonic() > deadline:
                    stuck = ", ".join(str(self.running[task][0].group_index) for task in pending)
                    raise EngineError(
                        f"requests did not end within {_CLOSE_DEADLINE:g} s after an abort: groups {stuck}"
                    )
        finally:
            for task in pending:
                task.cancel()
            self.context.aborting = False
        originals = list(self.running.values())
        results = [original if task.exception() else task.result() for task, original in self.running.items()]
        self.running.clear()
        self._give_back(results, originals)

    def _give_back(self, groups: list[Group], originals: list[Group]) -> None:
        """With --partial-rollout as they stand, else as fresh prompts: what is trained then is as on-policy as what the step drew itself."""
        returned = []
        for group, original in zip(groups, originals, strict=True):
            keep = self.args.partial_rollout and len(group) == self.args.n_samples_per_prompt
            chosen = group if keep else original
            if not keep:
                for sample in chosen:
                    sample.reset_response()
            self.counts["rollout/returned_partial" if keep else "rollout/returned_fresh"] += 1
            returned.append(chosen)
        self.source.add_samples(returned)

    def _within_lag(self, group: Group) -> Group:
        """With --max-policy-lag: what was begun under too old weights begins anew."""
        lag, serving = self.args.max_policy_lag, self.context.serving_version
        if lag is None or serving is None:
            return group
        for sample in group:
            oldest = sample.oldest_version()
            if oldest is not None and serving - oldest > lag:
                sample.reset_response()
                self.counts["rollout/reset_too_old"] += 1
        return group

    def _settle(self, groups: list[Group], fate: str) -> None:
        if isinstance(self.source, SettlingDataSource):
            self.source.settle(self.rollout_id, groups, fate)

    def _post_process(self) -> None:
        if (sample_filter := self._hook("rollout_sample_filter_path")) is not None:
            sample_filter(self.args, self.accepted)
        if (process := self._hook("rollout_all_samples_process_path")) is not None:
            process(self.args, [*self.accepted, *self.rejected], self.source)

    def _hook(self, option: str) -> Callable[..., Any] | None:
        path = getattr(self.args, option)
        return load_hook(option, path) if path else None


def _show(sample: Sample, args: Namespace) -> None:
    """Public report slime#1527: a reader must be able to see what is scored against what."""
    logger.info(
        "first sample: prompt %r, response %r, label %r, reward %r (%s)",
        sample.prompt, sample.response, sample.label, sample.reward, args.custom_rm_path or args.rm_type,
    )  # fmt: skip
