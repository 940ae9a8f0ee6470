"""What happens to a run when something fails: which deaths it survives, from where it goes on, and when it gives up.

The processes are stand-ins; tests/e2e/runtime kills real ones.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vime.cluster import run as run_module
from vime.cluster.halves import NoEngines, NoTrainers, NoUpdates, ReplayedRollouts
from vime.cluster.run import Run
from vime.cluster.weights import WeightUpdater
from vime.errors import EngineError, MachineError, UsageError
from vime.observe.ledger import Ledger, read_ledger
from vime.rollout.pool.schedules import Schedule


class Trainers:
    """Dies in the steps of `deaths`; its checkpoint is `saved`."""

    def __init__(self, deaths: list[int], saved: list[int]) -> None:
        self.deaths, self.saved, self.dead, self.killed = deaths, saved, False, False

    def init(self) -> tuple[int, Any]:
        return (self.saved[-1] + 1 if self.saved else 0), None

    def train(self, rollout_id: int, samples: Any) -> tuple[dict[str, float], dict[int, int]]:
        if self.deaths and rollout_id == self.deaths[0]:
            self.deaths.pop(0)
            self.dead = True
            raise MachineError("trainer (train) died: killed")
        return {}, {rollout_id: rollout_id}

    def save(self, rollout_id: int, blob: Any) -> str:
        self.saved.append(rollout_id)
        return ""

    def lost(self) -> list[int]:
        return [0] if self.dead else []

    def kill(self) -> None:
        self.killed = True


class Rollouts:
    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def __getattr__(self, name: str) -> Callable[[int], None]:
        return lambda step: self.calls.append((name, step))


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Run]:
    def make(deaths: list[int], total: int = 6, **flags: Any) -> Run:
        given = {
            "use_fault_tolerance": True,
            "load": "x",
            "save": "x",
            "offload_rollout": False,
            "offload_train": False,
            "debug_train_only": False,
        }
        given |= {"offload_rollout": False, "flush_cache_interval": 1}
        args = Namespace(**given | flags)
        saved: list[int] = []
        said: list[str] = []
        anything: Any = Namespace(say=said.append, log=lambda kind, step, metrics: None)
        trainers: Any = Trainers(deaths, saved)
        engines: Any = NoEngines()
        run = Run(
            args, Namespace(directory=tmp_path), trainers, engines, Rollouts(), WeightUpdater(args, trainers, engines, 0, Schedule("synchronous", ahead=False)),
            anything, anything, Ledger(tmp_path, 0), [], 0, total, respawn=lambda generation: Trainers(deaths, saved),  # type: ignore[arg-type, return-value]
        )  # fmt: skip
        run.session = Namespace(directory=tmp_path, said=said)  # type: ignore[assignment]
        return run

    return make


def loop(run: Run) -> None:
    """train.py's, without engines. A checkpoint every second step."""
    for step in range(run.start, run.total):
        _, trained = run.trainers.train(step, None)
        run.trained(step, trained, {})
        if step % 2:
            run.save(step)


def test_a_trainer_that_dies_is_replaced(make_run: Callable[..., Run], tmp_path: Path) -> None:
    run = make_run([3])
    first = run.trainers
    run.weights.unsure = [1]
    run.to_end(loop)
    assert first.killed  # type: ignore[attr-defined]
    assert ("restart", 1) in run.rollouts.calls  # type: ignore[attr-defined]
    assert [call for call in run.rollouts.calls if call[0] == "trained"] == [
        ("trained", s) for s in (0, 1, 2, 2, 3, 4, 5)
    ]  # type: ignore[attr-defined]
    assert [record["rollout_id"] for record in read_ledger(tmp_path / "ledger.jsonl")] == list(range(6))
    assert (run.weights.start, run.weights.version, run.weights.unsure) == (2, 2, [1])
    assert run.session.said[0].startswith("trainer rank 0 died (trainer (train) died: killed)")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "flags",
    [
        {"use_fault_tolerance": False},
        {"load": None},
        {"load": "other"},
        {"offload_rollout": True},
        {"offload_train": True},
    ],
)
def test_without_the_means_it_ends(make_run: Callable[..., Run], flags: dict[str, Any]) -> None:
    with pytest.raises(MachineError, match="died"):
        make_run([3], **flags).to_end(loop)


def test_what_fails_again_and_again_ends(make_run: Callable[..., Run]) -> None:
    with pytest.raises(MachineError, match="died"):
        make_run([3, 3, 3, 3, 3]).to_end(loop)


def test_other_errors_are_not_the_trainers(make_run: Callable[..., Run]) -> None:
    def failing(run: Run) -> None:
        raise EngineError("no engine is left")

    with pytest.raises(EngineError):
        make_run([]).to_end(failing)


def test_the_half_without_a_trainer() -> None:
    trainers = NoTrainers(Namespace(start_rollout_id=None))
    assert trainers.init() == (0, None)
    assert trainers.train(0, None) == ({}, {})
    with pytest.raises(UsageError, match="no weights to save"):
        trainers.save(0, None)
    assert NoUpdates(0).push().version == 0


def test_the_half_without_engines(tmp_path: Path, make_args: Callable[..., Namespace]) -> None:
    from vime.durable.archive import RolloutArchive
    from vime.sample import Sample, Status

    sample = Sample(group_index=0, index=0, tokens=[1, 2], response_length=1, reward=1.0, status=Status.COMPLETED)
    for step in range(3):
        RolloutArchive.save(tmp_path / f"{step}.pt", step, [sample])
    args = make_args("--load-debug-rollout-data", str(tmp_path / "{rollout_id}.pt"))
    assert args.debug_train_only
    assert args.rollout_num_gpus == 0
    rollouts = ReplayedRollouts(args)
    assert rollouts.steps() == 3
    with pytest.raises(UsageError, match="needs --load-debug-rollout-data"):
        ReplayedRollouts(Namespace(load_debug_rollout_data=None))
    assert run_module.due(1, 2, 9)


@pytest.mark.parametrize("half", ["whole", "rollouts", "training"])
def test_a_run_is_put_together(
    half: str, tmp_path: Path, make_args: Callable[..., Namespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `open_run` starts, without starting it: every part where the loop looks for it, and each half without the other."""
    import contextlib

    from vime import environment
    from vime.durable.archive import RolloutArchive
    from vime.sample import Sample, Status

    sample = Sample(group_index=0, index=0, tokens=[1, 2], response_length=1, reward=1.0, status=Status.COMPLETED)
    for step in range(3):
        RolloutArchive.save(tmp_path / f"{step}.pt", step, [sample])
    flags = {
        "rollouts": ["--debug-rollout-only"],
        "training": ["--load-debug-rollout-data", str(tmp_path / "{rollout_id}.pt")],
    }
    args = make_args("--run-dir", str(tmp_path), *flags.get(half, []))

    class Stub:
        """Answers every call, so that it passes for a session, a placement, engines and rollouts."""

        directory, run_id, options, urls, shared, trainers, engines = tmp_path, "x", None, (), False, (1,), ()

        def __getattr__(self, name: str) -> Any:
            answers: dict[str, Any] = {"ready": [], "steps": 3, "other_nodes": {}}
            return lambda *given: answers.get(name, self)

    @contextlib.contextmanager
    def stub(*given: Any) -> Iterator[Stub]:
        yield Stub()

    saved: list[int] = []
    for name, value in {
        "Session": stub,
        "Console": stub,
        "open_trackers": lambda *given: [],
        "start_engines": lambda *given: (Stub(), {}),
        "start_trainers": lambda *given: Trainers([], saved),
        "Rollouts": lambda *given: Stub(),
    }.items():
        monkeypatch.setattr(run_module, name, value)
    with run_module.open_run(args, environment.prepare()) as run:
        assert run.total == 3
        assert isinstance(run.trainers, NoTrainers if half == "rollouts" else Trainers)
        assert isinstance(run.engines, NoEngines if half == "training" else Stub)
        assert isinstance(run.weights, WeightUpdater if half == "whole" else NoUpdates)
        run.trained(0, run.trainers.train(0, None)[1], {})
    assert len(read_ledger(tmp_path / "ledger.jsonl")) == (0 if half == "rollouts" else 1)
