"""The pool on the event loop: starts groups, takes what ends, fills batches, and stands still around weight updates.

Every group that is claimed has one of these ends::

    accepted                             waits in the store for a batch, and is trained in one
    rejected by the dynamic filter       dropped "filter:<reason>"
    requests failed too often            dropped "failed:<reason>"
    unfinished at an update or a close   released: with --partial-rollout as it stands, else as a fresh prompt
    finished, but not needed any more    released the same way (synchronous schedule only; the others keep it for the next batch)
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import time
from argparse import Namespace
from collections import Counter
from dataclasses import dataclass

from vime.data.protocol import Group, oldest_version
from vime.errors import DataError, EngineError, EngineTimeout, HookError
from vime.hooks import load_hook
from vime.rollout import filters
from vime.rollout.context import RolloutContext
from vime.rollout.pool import admission
from vime.rollout.pool.report import StepReport
from vime.rollout.pool.schedules import Interruption, Schedule
from vime.rollout.pool.store import Batch, Store, Task
from vime.rollout.workers.desk import WorkerLost
from vime.sample import Status

logger = logging.getLogger(__name__)

#: Seconds between two sweeps of aborts while a step closes, and after which requests that do not end are an error.
_SWEEP, _CLOSE_DEADLINE = 3.0, 180.0
#: Seconds until a store that had nothing to give, because other workers hold it, is asked again.
_ASK_AGAIN = 0.2
#: Seconds before a failed group is tried again; doubled each time.
_RETRY_WAIT = 0.5


@dataclass(eq=False)
class Running:
    """A group in flight. `number`: order of drawing. `interruptions`: of the pool when it began. `failures`: attempts that did not end well."""

    number: int
    task_id: int
    original: Group
    deadline: float = admission.NEVER
    interruptions: int = 0
    failures: int = 0


class Pool:
    """Lives on one event loop, from the first step of a run to its last."""

    def __init__(self, args: Namespace, context: RolloutContext, store: Store, schedule: Schedule) -> None:
        self.args, self.context, self.store, self.schedule = args, context, store, schedule
        places = context.slots.places // args.n_samples_per_prompt
        self.limits = admission.Limits(args.rollout_batch_size, max(places, 1), schedule.max_lag, args.num_rollout)
        self.step = -1  # the next to be planned; nothing starts before the first is asked for
        self.report = StepReport()
        self._filter = (
            load_hook("dynamic_sampling_filter_path", args.dynamic_sampling_filter_path)
            if args.dynamic_sampling_filter_path
            else None
        )
        self._running: dict[asyncio.Task[Group], Running] = {}
        self._due: Counter[float] = Counter()  # running groups by deadline
        self._ready: dict[int, tuple[float, int]] = {}  # task -> deadline, order
        self._due_ready: Counter[float] = Counter()
        self._ended: list[asyncio.Task[Group]] = []
        self._changed = asyncio.Event()
        self._drawn = self._interruptions = 0
        self._filling = self._paused = self._closing = False
        self._error: BaseException | None = None
        self._exhausted: DataError | None = None
        for task in store.ready():
            self._make_ready(task.task_id, self._deadline(task.group))

    async def batch(self, step: int) -> tuple[Batch, StepReport]:
        """Wait for the batch of `step`. Exactly --rollout-batch-size groups; what is left over stays ready.

        Raises DataError when prompts run out, EngineError when engines fail for most of a step, HookError for a user's function.
        """
        began = time.perf_counter()
        self._filling = True
        self._turn_to(step)
        try:
            while (batch := self._plan()) is None:
                self._admit()
                if self._error is not None:
                    raise self._error
                if self._exhausted is not None and not self._running:
                    raise self._exhausted
                await self._change()
        except BaseException:
            self._filling = False
            await self._close()
            raise
        self._filling = False
        if not self.schedule.ahead:
            await self._close()
        report, self.report = self.report, StepReport()
        report.waited(began, len(self._running), len(self._ready), self.schedule.ahead)
        self._turn_to(step + 1)
        self._admit()
        return batch, report

    def _turn_to(self, step: int) -> None:
        if step != self.step:
            self.step = step
            self.task = self.context.group_task(step)

    async def _change(self) -> None:
        """Wait until a group has ended. With none running, the store had none to give: ask again soon."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if self._running else _ASK_AGAIN):
                await self._changed.wait()
        self._changed.clear()

    async def pause(self, flushes: bool) -> None:
        """Get ready for a weight update that flushes the engines' caches, or does not: from now on nothing is started."""
        self._paused = True
        self.report.paused(time.perf_counter())
        self.context.pause()
        await self.context.paused()
        match self.schedule.interruption(flushes):
            case Interruption.DRAIN:
                await self.context.idle()
            case Interruption.ABORT:
                self._interruptions += 1

    async def close(self) -> None:
        """Start nothing any more; what runs goes back to the store. The context is left open for another pool: whoever closes in the middle
        of a weight update, since the trainer died there, will not `resume` this one."""
        self._paused = True
        await self._close()
        self.context.resume()

    def resume(self) -> None:
        """The engines serve `context.serving_version` now."""
        self.context.resume()
        self._paused = False
        self.report.resumed(time.perf_counter())
        self._admit()

    # -- starting ------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        while not (self._paused or self._closing or self._error or self._exhausted) and (count := self._room()):
            try:
                tasks = self.store.claim(count)
            except DataError as error:
                self._exhausted = error
                return
            for task in tasks:
                self._begin(task)
            if not tasks:
                return

    def _room(self) -> int:
        if self.step < 0:
            return 0
        if self.schedule.ahead:
            return admission.room(self.limits, self.context.serving_version, self.step, self._due, self._due_ready)
        short = self._filling and len(self._ready) + len(self._running) < self.limits.size
        return int(self.args.over_sampling_batch_size) if short else 0

    def _begin(self, task: Task) -> None:
        self._drawn += 1
        group = task.group
        deadline = self._deadline(group)
        if not self._in_time(deadline):
            self.report.counts["rollout/reset_too_old"] += 1
            for sample in group:
                sample.reset_response()
            deadline = self._deadline(group)
        if task.finished and self.schedule.ahead:
            self.store.accept(task.task_id, group)
            self._make_ready(task.task_id, deadline, self._drawn)
            self._changed.set()
            return
        for sample in group:
            if sample.start_rollout_id is None:
                sample.start_rollout_id = self.step
        self._start(Running(self._drawn, task.task_id, group))

    def _in_time(self, deadline: float) -> bool:
        """Whether a group with this deadline can be trained in time beside all others; what was begun under too old weights cannot."""
        if not self.schedule.ahead:
            return deadline >= self.step
        due = self._due + self._due_ready
        due[deadline] += 1
        return admission.feasible(due, self.step, self.limits.size)

    def _deadline(self, group: Group) -> float:
        oldest = oldest_version(group)
        return self.limits.deadline(self.context.serving_version if oldest is None else oldest)

    def _start(self, one: Running, wait: float = 0.0) -> None:
        one.deadline, one.interruptions = self._deadline(one.original), self._interruptions
        # A user's function may leave its sample half written: it works on a copy.
        work = copy.deepcopy(one.original) if self.task.generate is not None else one.original
        task = asyncio.ensure_future(self._attempt(work, wait))
        self._running[task] = one
        self._due[one.deadline] += 1
        task.add_done_callback(self._note)

    async def _attempt(self, group: Group, wait: float) -> Group:
        if wait:
            await asyncio.sleep(wait)
        return await self.task.run(group)

    # -- ending --------------------------------------------------------------------------------------------------

    def _note(self, task: asyncio.Task[Group]) -> None:
        if self._closing:
            return
        if not self._ended:
            asyncio.get_running_loop().call_soon(self._collect)
        self._ended.append(task)

    def _collect(self) -> None:
        """Handle what has ended, in the order of drawing, so that a step can be repeated; then start what there is room for."""
        ended, self._ended = self._ended, []
        try:
            for task in sorted((task for task in ended if task in self._running), key=self._number):
                self._take(task, self._leave(task))
            self._admit()
        except Exception as error:  # whatever a user's function raises belongs to whoever waits for the batch
            self._error = self._error or error
        self._changed.set()

    def _number(self, task: asyncio.Task[Group]) -> int:
        return self._running[task].number

    def _leave(self, task: asyncio.Task[Group]) -> Running:
        one = self._running.pop(task)
        self._due[one.deadline] -= 1
        if not self._due[one.deadline]:
            del self._due[one.deadline]
        return one

    def _take(self, task: asyncio.Task[Group], one: Running) -> None:
        try:
            group = task.result()
        except WorkerLost:
            self.report.counts["rollout/lost_with_worker"] += 1
            return self._give_back(one.original, one, "worker lost")
        except EngineError as error:
            return self._retry(one, "timeout" if isinstance(error, EngineTimeout) else "engine_error", error)
        unfinished = [sample for sample in group if sample.status in (Status.ABORTED, Status.PENDING)]
        if not unfinished:
            return self._finish(group, one)
        if one.interruptions < self._interruptions:
            self.report.counts["rollout/interrupted"] += 1
            return self._give_back(group, one, "interrupted")
        if not self.args.partial_rollout:
            for sample in unfinished:
                sample.reset_response()
        return self._retry(one, "aborted", None)

    def _finish(self, group: Group, one: Running) -> None:
        size = len({sample.rollout_id for sample in group})
        if size != self.args.n_samples_per_prompt:
            raise HookError(
                f"a group came back with {size} trajectories; --n-samples-per-prompt is {self.args.n_samples_per_prompt}",
                hint="samples of one trajectory share their rollout_id, others must not",
            )
        failures = [str(sample.metadata["failure"]) for sample in group if sample.status is Status.FAILED]
        self.report.ended(group, failures)
        self._refuse_if_most_fail()
        if len(failures) == len(group):
            return self._drop(group, one, f"failed:{failures[0]}")
        if not self.schedule.ahead and self._ready_enough():
            return self._give_back(group, one, "surplus")
        verdict = filters.apply(self._filter, self.args, group)
        enough = self.schedule.ahead or len(self._ready) + len(self._running) >= self.limits.size
        if not verdict.keep and not (verdict.keep_when_insufficient and not enough):
            reason = verdict.reason or "filtered"
            self.report.counts[f"rollout/dynamic_filter/drop_{reason}"] += 1
            return self._drop(group, one, f"filter:{reason}")
        self.report.counts["rollout/dynamic_filter/kept"] += 1
        self.store.accept(one.task_id, group)
        return self._make_ready(one.task_id, one.deadline, one.number)

    def _make_ready(self, task_id: int, deadline: float, number: int = 0) -> None:
        self._ready[task_id] = (deadline, number)
        self._due_ready[deadline] += 1

    def _ready_enough(self) -> bool:
        return len(self._ready) >= self.limits.size

    def _drop(self, group: Group, one: Running, fate: str) -> None:
        self.report.rejected.append(group)
        self.store.drop(one.task_id, self.step, fate)

    def _retry(self, one: Running, reason: str, error: EngineError | None) -> None:
        """Public report slime#1562: one slow request ended a run at 62 %."""
        one.failures += 1
        self.report.counts[f"rollout/retries/{reason}"] += 1
        name = one.original[0].group_index
        if one.failures <= self.args.rollout_request_retries:
            logger.warning("group %s: %s; attempt %d follows", name, error or reason, one.failures + 1)
            return self._start(one, wait=0.0 if reason == "timeout" else _RETRY_WAIT * 2 ** (one.failures - 1))
        logger.warning("group %s is dropped after %d attempts: %s", name, one.failures, error or reason)
        self.report.counts["rollout/dropped_groups"] += 1
        self.report.ended(one.original, [reason] * len(one.original), counted=False)
        self._drop(one.original, one, f"failed:{reason}")
        return self._refuse_if_most_fail(error)

    def _refuse_if_most_fail(self, error: EngineError | None = None) -> None:
        """Judged once a step's worth of samples has ended, so that one bad prompt at the start decides nothing."""
        limit, size = self.args.max_failed_sample_ratio, self.limits.size * self.args.n_samples_per_prompt
        if self.report.samples >= size and self.report.failed >= limit * self.report.samples:
            raise EngineError(
                f"{self.report.failed} samples of rollout {self.step} failed of {self.report.samples} "
                f"(--max-failed-sample-ratio {limit:g}): {self.report.causes()}",
                hint=str(error) if error is not None else "the warnings above say what failed",
            )

    def _give_back(self, group: Group, one: Running, reason: str) -> None:
        """With --partial-rollout as it stands, else as a fresh prompt: what is trained then is as on-policy as what is drawn anew."""
        keep = self.args.partial_rollout and len(group) == self.args.n_samples_per_prompt
        chosen = group if keep else one.original
        if not keep:
            for sample in chosen:
                sample.reset_response()
        self.report.counts["rollout/returned_partial" if keep else "rollout/returned_fresh"] += 1
        self.store.release(one.task_id, chosen, reason)

    # -- batches -------------------------------------------------------------------------------------------------

    def _plan(self) -> Batch | None:
        if (batch := self.store.planned(self.step)) is not None:
            return batch
        running = self._due if self.schedule.ahead else {}
        chosen = admission.choose(self._ready, running, self.step, self.limits.size)
        if chosen is None:
            return None
        for task_id in chosen:
            deadline, _ = self._ready.pop(task_id)
            self._due_ready[deadline] -= 1
        self._due_ready += Counter()  # drops what is zero
        # A batch is in the order of its samples, whatever order they were finished in.
        return self.store.plan(self.step, sorted(chosen))

    async def _close(self) -> None:
        """End what still runs. Unfinished groups go back to the store, and so do finished ones that nobody took."""
        if not self._running:
            return
        self._closing = self.context.aborting = True
        self.context.resume()  # what waits for an update to end shall learn that there is nothing to wait for
        deadline = time.monotonic() + _CLOSE_DEADLINE
        pending = set(self._running)
        try:
            while pending:
                groups = [self._running[task].original for task in pending]
                sessions = [sample.session_id for group in groups for sample in group if sample.session_id is not None]
                await self.context.client.abort(
                    None if self.task.generate is not None else list(dict.fromkeys(sessions))
                )
                _, pending = await asyncio.wait(pending, timeout=_SWEEP)
                if pending and time.monotonic() > deadline:
                    stuck = ", ".join(str(self._running[task].original[0].group_index) for task in pending)
                    raise EngineError(
                        f"requests did not end within {_CLOSE_DEADLINE:g} s after an abort: groups {stuck}"
                    )
        finally:
            for task in pending:
                task.cancel()
            self.context.aborting = False
        for task in list(self._running):
            one = self._leave(task)
            self._give_back(one.original if task.exception() else task.result(), one, "closed")
        self._ended, self._closing = [], False
