"""What an update does about engines that died or failed. The processes are stand-ins; tests/e2e/runtime kills real ones."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest

from vime.cluster.weights import WeightUpdater
from vime.errors import EngineError
from vime.rollout.pool.schedules import Schedule


class Trainers:
    def offer(self, *of: Any) -> Any:
        return Namespace(nbytes=0)

    def send(self) -> list[Any]:
        return []

    def sent(self) -> None:
        pass

    def forget_engines(self) -> None:
        pass


class Engines:
    """Of engine `number` the updates fail as often as `failures` says; `gone` are those whose server has ended."""

    workers, urls = 2, ("a", "b")

    def __init__(self, gone: set[int], failures: dict[int, int]) -> None:
        self.gone, self.failures = gone, failures
        self.replaced: list[int] = []
        self.pause_modes: list[str] = []

    def dead(self) -> list[int]:
        return sorted(self.gone)

    def check(self, numbers: list[int], seconds: float = 0.0) -> None:
        for number in numbers:
            if number in self.gone:
                raise EngineError(f"engine {number}: killed")

    def update(self, offer: Any, send: Any, pause_mode: str) -> list[int]:
        self.pause_modes.append(pause_mode)
        failed = [number for number, times in self.failures.items() if times] + sorted(self.gone)
        self.failures = {number: max(times - 1, 0) for number, times in self.failures.items()}
        return failed

    def replace(self, numbers: list[int]) -> None:
        self.replaced += numbers
        self.gone -= set(numbers)


def updater(
    engines: Engines, tolerant: bool, schedule: Schedule = Schedule("synchronous", ahead=False)
) -> WeightUpdater:
    args = Namespace(use_fault_tolerance=tolerant, offload_train=False, offload_rollout=False, flush_cache_interval=1)
    trainers: Any = Trainers()
    stand_ins: Any = engines
    return WeightUpdater(args, trainers, stand_ins, 0, schedule)


@pytest.mark.parametrize(
    ("schedule", "mode"),
    [
        (Schedule("synchronous", ahead=False), "abort"),
        (Schedule("fully-async", ahead=True, max_lag=2), "abort"),
        (Schedule("fully-async", ahead=True, max_lag=2, partial=True), "keep"),
        (Schedule("fully-async", ahead=True, max_lag=2, partial=True, hands_over=True), "abort"),
    ],
)
def test_a_flush_ends_requests_only_where_the_schedule_says_so(schedule: Schedule, mode: str) -> None:
    engines = Engines(set(), {})
    assert updater(engines, True, schedule).push().flushed
    assert engines.pause_modes == [mode]


def test_a_dead_engine_is_replaced_where_faults_are_tolerated() -> None:
    engines = Engines({1}, {})
    assert updater(engines, tolerant=True).push().replaced == (1,)
    assert engines.replaced == [1]


def test_a_death_ends_the_run_where_they_are_not() -> None:
    """While the trainer works nobody waits for the engines: the update must not make up for that death in silence."""
    engines = Engines({1}, {})
    with pytest.raises(EngineError, match="engine 1: killed"):
        updater(engines, tolerant=False).push()
    assert engines.replaced == []


def test_a_death_during_the_update_is_one_too() -> None:
    engines = Engines({1}, {})
    engines.dead = list  # type: ignore[method-assign] # not known yet when the update begins
    with pytest.raises(EngineError, match="engine 1: killed"):
        updater(engines, tolerant=False).push()


@pytest.mark.parametrize("tolerant", [True, False])
def test_a_living_engine_that_fails_an_update_is_replaced(tolerant: bool) -> None:
    engines = Engines(set(), {0: 1})
    assert updater(engines, tolerant).push().replaced == (0,)


def test_one_that_keeps_failing_ends_the_run() -> None:
    engines = Engines(set(), {0: 9})
    with pytest.raises(EngineError, match=r"engines \[0\] did not take version 1 in 3 attempts"):
        updater(engines, tolerant=True).push()
