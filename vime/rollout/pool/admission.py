"""Which groups may start and which make a batch, decided with numbers alone. Pure.

A group's *deadline* is the last step that may train it. Step s trains on weights of version s + 1, so tokens of version v are at most L
versions old in every step up to v + L - 1. A set of groups can be trained in time, `size` of them a step, when for every step d no more of
them are due by d than the steps up to d can take; earliest deadline first then meets all deadlines (Horn 1974). New groups start only while
that holds, and a batch closes only when it holds for what the batch leaves behind. So no finished group is ever thrown away for its age:
generation is paced instead, and a slow group makes its last step wait.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

#: Deadline of a group without one.
NEVER = math.inf
#: How many groups are due, by deadline.
Due = Mapping[float, int]


@dataclass(frozen=True)
class Limits:
    """`size`: groups a step trains. `concurrency`: groups in flight at most. `max_lag` in versions, None is no bound. `steps`: of the whole run."""

    size: int
    concurrency: int
    max_lag: int | None = None
    steps: int | None = None

    def deadline(self, version: int | None) -> float:
        """The last step that may train tokens of `version`."""
        return NEVER if self.max_lag is None or version is None else version + self.max_lag - 1


def feasible(due: Due, step: int, size: int) -> bool:
    """Whether groups, `due` of them by deadline, can all be trained in time from `step` on."""
    total = 0
    for deadline in sorted(due):
        total += due[deadline]
        if total > 0 and total > size * (deadline - step + 1):
            return False
    return True


def room(limits: Limits, version: int | None, step: int, in_flight: Due, ready: Due) -> int:
    """How many new groups may start under weights `version`, with `step` the next to be planned."""
    running, waiting = sum(in_flight.values()), sum(ready.values())
    places = min(limits.concurrency - running, max(limits.concurrency, limits.size) - waiting)
    if limits.steps is not None:
        places = min(places, limits.size * (limits.steps - step) - running - waiting)
    deadline = limits.deadline(version)
    if deadline != NEVER:
        # Versions only grow, so the newest deadline is the last: every group that has one is due by it.
        due = running + waiting - in_flight.get(NEVER, 0) - ready.get(NEVER, 0)
        places = min(places, int(limits.size * (deadline - step + 1)) - due)
    return max(places, 0)


def choose(ready: Mapping[int, tuple[float, int]], in_flight: Due, step: int, size: int) -> list[int] | None:
    """The tasks that make the batch of `step`, earliest deadline first; None while it cannot close.

    `ready`: (deadline, order) of finished groups by task. The batch waits for running groups that no later step may train.
    """
    if len(ready) < size or any(deadline <= step for deadline, count in in_flight.items() if count):
        return None
    order = sorted(ready, key=lambda task: ready[task])
    left = Counter(dict(in_flight))
    left.update(ready[task][0] for task in order[size:])
    return order[:size] if feasible(left, step + 1, size) else None
