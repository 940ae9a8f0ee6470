"""Who has the devices when trainer and engines share them: one moves to the host, or drops what it can get again, before the other takes."""

from __future__ import annotations

from argparse import Namespace

from vime.cluster.engine import EngineGroup
from vime.cluster.trainer import TrainerGroup


class Turns:
    """Begins with the trainer's turn: engines start alone on the devices and are put to sleep before trainers begin (see `open_run`).

    Each call may be repeated. With devices of their own for both, nothing happens.
    """

    def __init__(self, args: Namespace, trainers: TrainerGroup, engines: EngineGroup) -> None:
        self.trainers, self.engines = trainers, engines
        self._trainers_leave, self._engines_sleep = args.offload_train, args.offload_rollout
        self._asleep = self._engines_sleep
        self._away = False

    def to_trainer(self) -> dict[str, float]:
        """Before training: engines sleep, everything of the trainer comes back."""
        if self._engines_sleep and not self._asleep:
            self.engines.sleep()
            self._asleep = True
        if self._away:
            self._away = False
            return self.trainers.onload()
        return {}

    def to_update(self) -> dict[str, float]:
        """Before weights are sent: the trainer keeps its weights on the devices, engines get room for theirs."""
        metrics = {}
        if self._trainers_leave:
            metrics = self.trainers.offload(keep_weights=True)
            self._away = True
        if self._asleep:
            self.engines.wake_up("weights")
        return metrics

    def to_engines(self) -> None:
        """After weights were sent: the trainer leaves, engines get the room for their caches."""
        if self._trainers_leave:
            self.trainers.offload(keep_weights=False)
        if self._asleep:
            self.engines.wake_up("kv_cache")
            self._asleep = False

    def replace(self, numbers: list[int]) -> None:
        """New engines for `numbers`. A server takes its share of an empty device when it starts, so the trainer leaves meanwhile, and the
        new ones sleep like the others until the update."""
        if not numbers:
            return
        if self._trainers_leave:
            self.trainers.offload(keep_weights=False)
        self.engines.replace(numbers)
        if self._engines_sleep:
            self.engines.sleep()
            self._asleep = True
        if self._trainers_leave:
            self.trainers.onload()
            self._away = False
        self.trainers.forget_engines()
