"""Commits in the background: the pool goes on while its changes reach the disk, in groups, in an order that never says more than is true.

Each change takes its turn behind the earlier ones of the same task. What waits is committed together, kind by kind, so that a step of hundreds
of groups costs some dozens of waits for the disk, and those beside generation and training. `barrier` is where a caller needs them done.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from vime.durable.faults import told
from vime.durable.packed import Packed
from vime.durable.queue import Queue
from vime.errors import MachineError, VimeError

log = logging.getLogger(__name__)

#: Seconds that a change waits for others to be committed with it, unless somebody waits for it or a batch is complete. Shorter rounds would cost
#: a step more, and that while answers come in, when this process has the most to do.
_LINGER = 2.0
#: Seconds between a batch and its commit, unless somebody waits: the batch is on its way to the trainer through this very process. Without them
#: that way took 7 ms more in a step of the toy, and the log-probabilities after it, which use all cores, 20 ms.
_HANDOVER = 0.1


@dataclass(frozen=True)
class Claim:
    """`packed` of a task that is new to the queue, with its metadata and the data source's position after it; None for a known one."""

    task_id: int
    packed: Packed | None = None
    metadata: dict[str, Any] | None = None
    cursor: Any = None


@dataclass(frozen=True)
class Release:
    task_id: int
    packed: Packed
    priority: int
    version: int


@dataclass(frozen=True)
class Accept:
    task_id: int
    packed: Packed


@dataclass(frozen=True)
class Drop:
    task_id: int
    step: int
    reason: str


@dataclass(frozen=True)
class Act:
    """Something that comes after all changes before it and before all after it."""

    act: Callable[[Queue], None]


Change = Claim | Release | Accept | Drop | Act


class Writer:
    """One thread that owns `queue`. An error stops it; every later call raises that error."""

    def __init__(self, queue: Queue, deadline: float) -> None:
        """`deadline`: seconds that a barrier may take."""
        self._queue, self._deadline = queue, deadline
        self._waiting: deque[Change] = deque()
        self._changed = threading.Condition()
        self._put = self._done = self._urgent = self._soon = 0
        self._closing = self._raised = False
        self._error: VimeError | None = None
        self._thread = threading.Thread(target=self._run, name="vime-queue", daemon=True)
        self._thread.start()

    def put(self, *changes: Change, now: bool = False) -> None:
        """`now`: a batch is complete; commit it and all before it once it has had the time to leave."""
        with self._changed:
            self._check()
            idle = not self._waiting
            self._waiting.extend(changes)
            self._put += len(changes)
            if now:
                self._soon = self._put
            if now or idle:
                self._changed.notify_all()

    @property
    def mark(self) -> int:
        """How much has been put so far; `barrier` takes it."""
        return self._put

    def barrier(self, mark: int | None = None) -> None:
        """Return when everything put so far, or up to `mark`, is committed. Raises MachineError after the deadline, or what stopped the writer."""
        with self._changed:
            target = self._put if mark is None else mark
            self._check()
            if self._done >= target:
                return
            self._urgent += 1
            self._changed.notify_all()
            ended = self._changed.wait_for(
                lambda: self._done >= target or self._error is not None, timeout=self._deadline
            )
            self._urgent -= 1
            self._check()
            if not ended:
                raise MachineError(
                    f"the rollout queue did not commit within {self._deadline:.0f} s",
                    where=str(self._queue.pool.folder),
                    hint="its file system hangs or is overloaded; what was committed is kept, and the same command resumes",
                )

    def close(self) -> None:
        """Commit what waits, then end. Does not raise: the run's own error is worth more. One of the writer's that nobody has heard of is logged."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(self._deadline)
        if self._error is not None and not self._raised:
            log.error("the rollout queue's last changes were not committed: %s", self._error)

    def _awaited(self) -> bool:
        return bool(self._urgent) or self._closing

    def _hurried(self) -> bool:
        return self._awaited() or self._soon > self._done

    def _linger(self) -> None:
        """More changes are about to come, and each group of them costs the same."""
        if self._changed.wait_for(self._hurried, timeout=_LINGER):
            self._changed.wait_for(self._awaited, timeout=_HANDOVER)

    def _check(self) -> None:
        if self._error is not None:
            self._raised = True
            raise self._error

    def _run(self) -> None:
        pause = self._queue.lease_seconds / 3
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing, timeout=pause)
                if not self._waiting and self._closing:
                    return
                if self._waiting:
                    self._linger()
                taken = list(self._waiting)
                self._waiting.clear()
            try:
                with told(self._queue.pool.folder, "committing to the rollout queue"):
                    for group in groups(taken):
                        commit(self._queue, group)
                    self._queue.heartbeat()
            except Exception as error:
                with self._changed:
                    self._error = (
                        error if isinstance(error, VimeError) else MachineError(f"the rollout queue: {error!r}")
                    )
                    self._changed.notify_all()
                return
            with self._changed:
                self._done += len(taken)
                self._changed.notify_all()


def groups(changes: Iterable[Change]) -> list[list[Change]]:
    """Changes of one kind that may be committed together, in an order in which no task's own changes are exchanged. Pure.

    Claims come before releases, those before acceptances and drops, in rounds; an `Act` is a group of its own that nothing passes.
    """
    found: list[list[Change]] = []
    rounds: list[dict[type, list[Change]]] = []
    turn: dict[int, int] = {}
    order = {Claim: 0, Release: 1, Accept: 2, Drop: 3}

    def close() -> None:
        for one in rounds:
            found.extend(one[kind] for kind in order if kind in one)
        rounds.clear()
        turn.clear()

    last: dict[int, type] = {}
    for change in changes:
        if isinstance(change, Act):
            close()
            last.clear()
            found.append([change])
            continue
        kind, number = type(change), turn.get(change.task_id, 0)
        if change.task_id in last and order[kind] <= order[last[change.task_id]]:
            number += 1
        last[change.task_id], turn[change.task_id] = kind, number
        while len(rounds) <= number:
            rounds.append({})
        rounds[number].setdefault(kind, []).append(change)
    close()
    return found


def commit(queue: Queue, group: list[Change]) -> None:
    """One group of `groups`."""
    match group[0]:
        case Act(act):
            act(queue)
        case Claim():
            claims = [one for one in group if isinstance(one, Claim)]
            new = [(one.task_id, one.packed, one.metadata or {}) for one in claims if one.packed is not None]
            if new:
                queue.submit(new, next(one.cursor for one in reversed(claims) if one.packed is not None))
            queue.acquire([one.task_id for one in claims])
        case Release():
            queue.give_back([(r.task_id, r.packed, r.priority, r.version) for r in group if isinstance(r, Release)])
        case Accept():
            queue.complete([(one.task_id, one.packed) for one in group if isinstance(one, Accept)])
        case Drop():
            queue.drop([(one.task_id, one.step, one.reason) for one in group if isinstance(one, Drop)])
