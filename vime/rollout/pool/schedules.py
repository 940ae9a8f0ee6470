"""How far generation may run ahead of training, as values (``--rollout-schedule``).

synchronous     answers are drawn while nothing trains; what is unfinished when the batch is full is ended
one-step-ahead  the next batch is drawn while the present one trains; an update waits for running requests
fully-async     groups are in flight all the time; with --partial-rollout an answer outlives an update, and is computed anew from its tokens under
                the new weights; without it, an update waits for running requests
in-flight       the same, but most updates keep even what older weights computed (PipelineRL, arXiv 2509.19128)
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from enum import Enum


class Interruption(Enum):
    """What a weight update does to running requests."""

    DRAIN = "drain"  # they end first
    ABORT = "abort"  # they end with what they have, go back to the store, and are continued from there
    KEEP = (
        "keep"  # they stand still and go on; an engine whose caches are flushed first computes anew what it has of them
    )

    @property
    def pause_mode(self) -> str:
        """How the engines are paused for it (`vime.engine.control.PAUSE_MODES`). Where requests have ended, nothing is left to abort."""
        return "keep" if self is Interruption.KEEP else "abort"


@dataclass(frozen=True)
class Schedule:
    """`ahead`: groups run while a batch trains. `in_flight`: an update that flushes no cache leaves requests where they are. `hands_over`: what an
    update flushes must leave the engine, see `schedule_of`.

    `max_lag`: versions between the weights that a batch is trained on and the oldest that one of its tokens was sampled under; None is no bound.
    """

    name: str
    ahead: bool
    max_lag: int | None = None
    partial: bool = False
    in_flight: bool = False
    hands_over: bool = False

    def interruption(self, flushes: bool) -> Interruption:
        """At an update that flushes the engines' caches, or does not. Without partial rollouts no answer has tokens of two versions by a flush."""
        if self.in_flight and not flushes:
            return Interruption.KEEP
        if not self.partial or self.name == ONE_STEP_AHEAD:
            return Interruption.DRAIN
        return Interruption.ABORT if self.hands_over or not self.ahead else Interruption.KEEP


SYNCHRONOUS, ONE_STEP_AHEAD, FULLY_ASYNC, IN_FLIGHT = NAMES = (
    "synchronous",
    "one-step-ahead",
    "fully-async",
    "in-flight",
)

#: --max-policy-lag where it is left out.
DEFAULT_LAG = {SYNCHRONOUS: None, ONE_STEP_AHEAD: 1, FULLY_ASYNC: 2, IN_FLIGHT: 2}


def schedule_of(args: Namespace) -> Schedule:
    """The schedule that resolved arguments ask for.

    An answer that stays in its engine costs nothing to continue. It has to come out and be sent again where a durable queue shall have it, where
    its tokens so far are to be masked, and where it needs the routes that those tokens took under the weights that sampled them.
    """
    name = args.rollout_schedule
    hands_over = (
        args.rollout_data_transport == "straw"
        or args.mask_offpolicy_in_partial_rollout
        or args.use_rollout_routing_replay
    )
    return Schedule(
        name, name != SYNCHRONOUS, args.max_policy_lag, args.partial_rollout, name == IN_FLIGHT, bool(hands_over)
    )
