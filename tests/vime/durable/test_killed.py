"""SIGKILL of the manager or the trainer at every point of a run, many times in a row: nothing lost, nothing trained twice.

A chain is one command started again and again. Every start is killed at another point, until one gets through; the result must be that of a run
that nobody killed.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vime.durable.audit import audit
from vime.files import SHARED_MEMORY
from vime.observe.ledger import read_ledger

ROOT = Path(__file__).resolve().parents[3]
TOTAL = 6
PHASES = (
    *("manager:claimed", "manager:generating", "manager:accepted", "manager:planned", "manager:step trained"),
    *("manager:data half saved", "manager:committed", "manager:weight update"),
    *(
        "trainer:loaded",
        "trainer:training",
        "trainer:trained",
        "trainer:saving",
        "trainer:saved, not marked",
        "trainer:marked",
    ),
)


class Runs:
    """Runs of victim.py by one process that has imported everything."""

    def __init__(self, folder: Path, args: Namespace) -> None:
        with open(folder / "args", "wb") as stream:
            pickle.dump(args, stream)
        self.folder, self.count = folder, 0
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.vime.durable.victim", str(folder / "args")],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=open(folder / "stderr", "w"),  # noqa: SIM115 - the process's own
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    def new(self) -> Path:
        self.count += 1
        return self.folder / f"run{self.count}"

    def start(self, save: Path, ahead: bool, seed: int, deadly: tuple[str, int] | None) -> int:
        """Exit code of one run; negative: the signal that killed it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        task = {"save": str(save), "total": TOTAL, "ahead": ahead, "seed": seed, "deadly": deadly}
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, (self.folder / "stderr").read_text()
        return int(line)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(30)
        finally:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def runs(straw_args: Callable[..., Namespace], tmp_path: Path) -> Iterator[Runs]:
    # A disk would only make it slow.
    with tempfile.TemporaryDirectory(prefix="vime-test-", dir=SHARED_MEMORY, ignore_cleanup_errors=True) as folder:
        found = Runs(Path(folder), straw_args("--rollout-queue-online-gc", "--rollout-queue-segment-mib", "1"))
        try:
            yield found
        finally:
            found.close()


def whole(runs: Runs, ahead: bool, seed: int = 0) -> dict[str, Any]:
    """A run that nobody kills: its weights, and how often it passes each point."""
    save = runs.new()
    assert runs.start(save, ahead, seed, None) == 0, (runs.folder / "stderr").read_text()
    assert audit(save, deep=True).findings == ()
    return dict(json.loads((save / "end.json").read_text()))


def chain(runs: Runs, points: list[tuple[str, int]], ahead: bool, seed: int) -> tuple[Path, list[str]]:
    """One run killed at these points in turn, then let through. After each death the records must be whole."""
    save = runs.new()
    for deadly in points:
        code = runs.start(save, ahead, seed, deadly)
        assert code in (0, -9), (deadly, (runs.folder / "stderr").read_text())
        if (save / "rollout_data" / "current.json").is_file():
            report = audit(save, deep=True)
            assert report.findings == (), (deadly, report.findings)
        if code == 0:
            break  # a trainer was killed and replaced, or the point no longer came
    else:
        assert runs.start(save, ahead, seed, None) == 0, (points, (runs.folder / "stderr").read_text())
    killed = save / "killed.txt"
    return save, killed.read_text().splitlines() if killed.is_file() else []


def exactly_once(save: Path) -> None:
    report = audit(save, deep=True)
    assert report.findings == ()
    assert report.trained_steps == TOTAL
    ledger = read_ledger(save / "ledger.jsonl")
    assert [record["rollout_id"] for record in ledger] == list(range(TOTAL))
    times = Counter(sample for record in ledger for sample, _ in record["samples"])
    assert set(times.values()) == {1}
    # Every prompt up to the last that was drawn is trained, dropped for its reason, or still there.
    assert sorted(report.fates) == list(range(len(report.fates)))
    dropped = {group for group, fate in report.fates.items() if fate.kind == "dropped"}
    assert dropped <= {group for group in report.fates if group % 7 == 6}


def ends_a_chain(point: str) -> bool:
    """A trainer that was killed is replaced, and the run goes on to its end: what would follow in the chain is never reached."""
    return point.startswith("trainer:")


def spread(points: Iterable[str]) -> list[str]:
    """All of them, the trainer's far from each other, so that no chain has two."""
    names = sorted(points, key=lambda name: (ends_a_chain(name), name))
    last = sum(map(ends_a_chain, names))
    others, apart = names[:-last], len(names) // last
    return [
        name for i, end in enumerate(names[-last:]) for name in (*others[i * (apart - 1) : (i + 1) * (apart - 1)], end)
    ] + others[last * (apart - 1) :]


def campaign(runs: Runs, seed: int, chains: int, kills: int, ahead: bool, part: int = 0) -> Counter[str]:
    """`chains` runs of up to `kills` kills each, at points that follow on those of the part before. Returns the kills by point."""
    chance = random.Random(seed)
    reference = whole(runs, ahead, seed)
    names = spread(reference["points"])
    done: Counter[str] = Counter()
    for number in range(part * chains, (part + 1) * chains):
        # Every point has its turn; how often it was passed before is chance.
        picked = sorted((names[(number * kills + i) % len(names)] for i in range(kills)), key=ends_a_chain)
        points = [(name, chance.randrange(max(1, reference["points"][name] // 2))) for name in picked]
        save, killed = chain(runs, points, ahead, seed)
        done.update(killed)
        exactly_once(save)
        if not ahead:
            assert json.loads((save / "end.json").read_text())["weights"] == reference["weights"], points
    return done


@pytest.mark.timeout(900)
def test_killed_anywhere(runs: Runs) -> None:
    """A sample of the campaign, small enough for every day."""
    done = campaign(runs, seed=1, chains=3, kills=3, ahead=False) + campaign(
        runs, seed=2, chains=2, kills=3, ahead=True
    )
    assert done.total() >= 8, done


PARTS = 5


@pytest.fixture(scope="module")
def everywhere() -> Iterator[list[Counter[str]]]:
    """The kills of all parts of the campaign. In the end they must be many, and at every point."""
    parts: list[Counter[str]] = []
    yield parts
    done = sum(parts, Counter())
    print(f"{done.total()} kills at {len(done)} points: {dict(done.most_common())}")
    if len(parts) == PARTS:
        assert done.total() >= 200, done
        assert set(PHASES) <= done.keys(), set(PHASES) - done.keys()
        assert any("gc" in name for name in done), done


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_killed_everywhere(runs: Runs, everywhere: list[Counter[str]], part: int) -> None:
    sync = campaign(runs, seed=10 + part, chains=8, kills=4, ahead=False, part=part)
    everywhere.append(sync + campaign(runs, seed=20 + part, chains=5, kills=4, ahead=True, part=part))
