"""How far generation may run ahead of training, as values (``--rollout-schedule``).

synchronous     answers are drawn while nothing trains; what is unfinished when the batch is full is ended
one-step-ahead  the next batch is drawn while the present one trains; an update waits for running requests
fully-async     groups are in flight all the time; an update ends running requests, or waits for them without --partial-rollout
in-flight       the same, but most updates happen under running requests (PipelineRL, arXiv 2509.19128)
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from enum import Enum


class Interruption(Enum):
    """What a weight update does to running requests."""

    DRAIN = "drain"  # they end first
    ABORT = "abort"  # they end with what they have, and are continued under the new weights
    KEEP = "keep"  # they stand still and go on


@dataclass(frozen=True)
class Schedule:
    """`ahead`: groups run while a batch trains. `in_flight`: an update that flushes no cache leaves requests where they are.

    `max_lag`: versions between the weights that a batch is trained on and the oldest that one of its tokens was sampled under; None is no bound.
    """

    name: str
    ahead: bool
    max_lag: int | None = None
    partial: bool = False
    in_flight: bool = False

    def interruption(self, flushes: bool) -> Interruption:
        """At an update that flushes the engines' caches, or does not. Without partial rollouts no answer has tokens of two versions by a flush."""
        if self.in_flight and not flushes:
            return Interruption.KEEP
        return Interruption.ABORT if self.partial and self.name != ONE_STEP_AHEAD else Interruption.DRAIN


SYNCHRONOUS, ONE_STEP_AHEAD, FULLY_ASYNC, IN_FLIGHT = NAMES = (
    "synchronous",
    "one-step-ahead",
    "fully-async",
    "in-flight",
)

#: --max-policy-lag where it is left out.
DEFAULT_LAG = {SYNCHRONOUS: None, ONE_STEP_AHEAD: 1, FULLY_ASYNC: 2, IN_FLIGHT: 2}


def schedule_of(args: Namespace) -> Schedule:
    """The schedule that resolved arguments ask for."""
    name = args.rollout_schedule
    return Schedule(name, name != SYNCHRONOUS, args.max_policy_lag, args.partial_rollout, name == IN_FLIGHT)
