"""One version of the weights after another, from the trainer into every engine."""

from __future__ import annotations

import logging
import time
from argparse import Namespace
from dataclasses import dataclass

from vime.cluster.engine import EngineGroup
from vime.cluster.trainer import TrainerGroup
from vime.cluster.turns import Turns
from vime.errors import EngineError
from vime.rollout.pool.schedules import SYNCHRONOUS, Schedule

log = logging.getLogger(__name__)

_ATTEMPTS = 3
#: Seconds in which a server that failed an update because it died is known to have.
_DEATH_SECONDS = 3.0


@dataclass(frozen=True)
class Update:
    """What one update did. `flushed`: whether the engines dropped what they had computed with older weights."""

    version: int
    seconds: float
    nbytes: int
    flushed: bool
    replaced: tuple[int, ...]


class WeightUpdater:
    """Owns the version number. It counts updates from the step that the run starts at, so that it tells the training step."""

    def __init__(
        self, args: Namespace, trainers: TrainerGroup, engines: EngineGroup, start: int, schedule: Schedule
    ) -> None:
        self.args, self.trainers, self.engines, self.schedule = args, trainers, engines, schedule
        self.turns = Turns(args, trainers, engines)
        self.start = self.version = start
        #: Engines that failed an update and were not replaced, because something else failed first.
        self.unsure: list[int] = []

    @property
    def flushes_next(self) -> bool:
        """Whether the next update drops the engines' caches."""
        return flushes(self.version + 1, self.start, self.args.flush_cache_interval)

    def expect(self) -> None:
        """Training is about to begin, and an update will follow it. Where nothing is generated meanwhile the engines are paused by then."""
        args = self.args
        idle = self.schedule.name == SYNCHRONOUS and "rollout_function_path" not in args.given
        if idle and not args.offload_rollout:
            self.engines.pause(self._pause_mode(self.flushes_next), self.flushes_next)

    def push(self) -> Update:
        """Give the engines the trainer's present weights. One that fails is replaced and updated; never resumed.

        So is one that died, with ``--use-fault-tolerance``. Raises EngineError when engines keep failing, and for a death without that.
        """
        begun = time.perf_counter()
        flush = self.flushes_next
        self.version += 1
        dead = self.engines.dead()
        self._judge(dead)
        replaced = sorted({*dead, *self.unsure})
        self.turns.replace(replaced)
        for _ in range(_ATTEMPTS):
            self.turns.to_update()
            offer = self.trainers.offer(str(self.version), self.engines.workers, flush, self.engines.urls)
            failed = self.engines.update(offer, self.trainers.send, self._pause_mode(flush))
            self.unsure = failed
            self.trainers.sent()
            if not failed:
                self.turns.to_engines()
                seconds = time.perf_counter() - begun
                return Update(self.version, seconds, offer.nbytes, flush, tuple(replaced))
            self._judge(failed, _DEATH_SECONDS)
            self.turns.replace(failed)
            replaced += failed
            self.unsure = []
        raise EngineError(f"engines {failed} did not take version {self.version} in {_ATTEMPTS} attempts")

    def _judge(self, failed: list[int], seconds: float = 0.0) -> None:
        """A death ends the run whenever it happens, unless it may be survived: what a crash does must not hang on the moment."""
        if not self.args.use_fault_tolerance:
            self.engines.check(failed, seconds)

    def _pause_mode(self, flush: bool) -> str:
        return self.schedule.interruption(flush).pause_mode

    def push_again(self) -> list[str]:
        """Send the present version once more. Returns the names of the tensors that were sent, where the medium tells.

        Raises EngineError when an engine does not take it.
        """
        self.turns.to_trainer()
        self.turns.to_update()
        offer = self.trainers.offer(str(self.version), self.engines.workers, True, self.engines.urls)
        failed = self.engines.update(offer, self.trainers.send, "abort")
        self.trainers.sent()
        self.turns.to_engines()
        if failed:
            raise EngineError(f"engines {failed} did not take version {self.version} a second time")
        return [tensor.name for bucket in offer.buckets for tensor in bucket.tensors]


def flushes(version: int, start: int, interval: int) -> bool:
    """Whether the update to `version` drops the engines' caches: the first one always, then every `interval` versions, 0 never."""
    return version == start + 1 or (interval > 0 and (version - 1) % interval == 0)
