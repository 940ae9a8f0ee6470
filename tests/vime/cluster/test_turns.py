"""Trainer and engines on the same devices: who is on them at each moment, also when an engine is replaced."""

from __future__ import annotations

from argparse import Namespace

import pytest

from vime.cluster.turns import Turns


class Devices:
    """Both sides, as a record of who holds what. Raises when memory is asked for that the other side has."""

    def __init__(self) -> None:
        # As `open_run` leaves it: engines asleep, the trainer everything.
        self.trainer = {"weights", "optimizer"}
        self.engine: set[str] = set()
        self.log: list[str] = []

    def offload(self, keep_weights: bool = False) -> dict[str, float]:
        self.trainer = self.trainer & {"weights"} if keep_weights else set()
        self.log.append("trainer keeps weights" if keep_weights else "trainer leaves")
        return {"perf/offload_time": 0.0}

    def onload(self) -> dict[str, float]:
        assert not self.engine, "the trainer came back to devices that engines hold"
        self.trainer = {"weights", "optimizer"}
        self.log.append("trainer returns")
        return {"perf/onload_time": 0.0}

    def forget_engines(self) -> None:
        self.log.append("connections dropped")

    def sleep(self) -> None:
        self.engine = set()
        self.log.append("engines sleep")

    def wake_up(self, *tags: str) -> None:
        assert "optimizer" not in self.trainer
        assert "kv_cache" not in tags or not self.trainer
        self.engine |= set(tags)
        self.log.append("engines get " + " ".join(tags))

    def replace(self, numbers: list[int]) -> None:
        assert not self.trainer, "a server started on devices that the trainer holds"
        self.engine = {"weights", "kv_cache"}
        self.log.append(f"engines {numbers} start")


def turns(offload_train: bool = True, offload_rollout: bool = True) -> tuple[Turns, Devices]:
    devices = Devices()
    args = Namespace(offload_train=offload_train, offload_rollout=offload_rollout)
    return Turns(args, devices, devices), devices  # type: ignore[arg-type]


def test_a_run_is_a_sequence_of_turns() -> None:
    both, devices = turns()
    for _ in range(2):
        both.to_update()
        assert (devices.trainer, devices.engine) == ({"weights"}, {"weights"})
        both.to_engines()
        assert (devices.trainer, devices.engine) == (set(), {"weights", "kv_cache"})
        assert both.to_trainer() == {"perf/onload_time": 0.0}
        assert (devices.trainer, devices.engine) == ({"weights", "optimizer"}, set())
    assert both.to_trainer() == {}


@pytest.mark.parametrize("when", ["before the update", "in the update", "while generating"])
def test_a_replaced_engine_starts_on_empty_devices(when: str) -> None:
    both, devices = turns()
    if when != "before the update":
        both.to_update()
    if when == "while generating":
        both.to_engines()
    both.replace([0])
    assert (devices.trainer, devices.engine) == ({"weights", "optimizer"}, set())
    assert devices.log[-1] == "connections dropped"
    both.to_update()
    both.to_engines()
    assert (devices.trainer, devices.engine) == (set(), {"weights", "kv_cache"})


def test_nothing_happens_on_devices_of_their_own() -> None:
    both, devices = turns(False, False)
    both.to_update()
    both.to_engines()
    assert both.to_trainer() == {}
    assert devices.log == []
    both.replace([])
    assert devices.log == []
