"""The pool's scheduler before 1,000 engines that are only simulated: what each schedule keeps busy, and what a decision costs.

    python benchmarks/async/simulate.py [--engines 1000] [--steps 30]

The admission rules are the real ones (vime/rollout/pool/admission.py); engines, trainer and weight updates are a discrete-event model. An engine
runs `slots` groups at a time, a group takes as long as its longest answer, lengths are log-normal with a tail cut at the longest. The trainer is sized so
that it is as fast as the engines when nobody waits. Written to benchmarks/results/async-scale.json.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from vime.rollout.pool import admission  # noqa: E402

TOKENS_PER_SECOND = 40.0  # of one answer
LONGEST = 16_384
UPDATE_SECONDS = 2.0


@dataclass(frozen=True)
class Shape:
    engines: int
    slots: int
    size: int
    steps: int
    answers: int = 8

    @property
    def places(self) -> int:
        return self.engines * self.slots


@dataclass
class Fleet:
    """Groups in flight as a heap of (end, task). Time stands still for all of them during an update."""

    rng: random.Random
    answers: int
    now: float = 0.0
    ends: list[tuple[float, int]] = field(default_factory=list)
    busy: float = 0.0

    def start(self, task: int) -> None:
        longest = max(min(LONGEST, self.rng.lognormvariate(7.0, 1.0)) for _ in range(self.answers))
        seconds = longest / TOKENS_PER_SECOND
        self.busy += seconds
        heapq.heappush(self.ends, (self.now + seconds, task))

    def hold(self, seconds: float) -> None:
        self.now += seconds
        self.ends = [(end + seconds, task) for end, task in self.ends]  # the order, and so the heap, stays


def simulate(shape: Shape, lag: int, drains: bool, train_seconds: float, seed: int = 0) -> dict[str, Any]:
    """One run. `drains`: an update waits for what is in flight (one step ahead); else it holds it (in-flight updates)."""
    limits = admission.Limits(shape.size, shape.places, lag, shape.steps)
    fleet = Fleet(random.Random(seed), shape.answers)
    in_flight: Counter[float] = Counter()
    due_ready: Counter[float] = Counter()
    deadlines: dict[int, float] = {}
    versions: dict[int, int] = {}
    ready: dict[int, tuple[float, int]] = {}
    step, version, drawn, waited, decisions = 0, 1, 0, 0.0, 0
    lags: list[int] = []
    thinking = 0.0

    def admit() -> None:
        nonlocal drawn, decisions, thinking
        began = time.perf_counter()
        count = admission.room(limits, version, step, in_flight, due_ready)
        decisions += 1
        thinking += time.perf_counter() - began
        deadline = limits.deadline(version)
        for _ in range(count):
            fleet.start(drawn)
            deadlines[drawn], versions[drawn] = deadline, version
            in_flight[deadline] += 1
            drawn += 1

    def finish_one() -> None:
        fleet.now, task = heapq.heappop(fleet.ends)
        deadline = deadlines[task]
        in_flight[deadline] -= 1
        if not in_flight[deadline]:
            del in_flight[deadline]
        ready[task] = (deadline, task)
        due_ready[deadline] += 1

    def run_until(moment: float, admits: bool = True) -> None:
        while fleet.ends and fleet.ends[0][0] <= moment:
            finish_one()
            if admits:
                admit()
        fleet.now = moment

    while step < shape.steps:
        asked = fleet.now
        admit()
        while True:
            began = time.perf_counter()
            chosen = admission.choose(ready, in_flight, step, shape.size)
            decisions += 1
            thinking += time.perf_counter() - began
            if chosen is not None:
                break
            finish_one()
            admit()
        waited += fleet.now - asked
        for task in chosen:
            deadline, _ = ready.pop(task)
            due_ready[deadline] -= 1
            lags.append(step + 1 - versions[task])
        due_ready += Counter()
        step += 1
        admit()
        run_until(fleet.now + train_seconds)
        if drains:
            trained = fleet.now
            run_until(max((end for end, _ in fleet.ends), default=fleet.now), admits=False)
            waited += fleet.now - trained
        fleet.hold(UPDATE_SECONDS)
        version += 1
    return {
        "seconds_per_step": round(fleet.now / shape.steps, 1),
        "engines_busy": round(fleet.busy / (fleet.now * shape.places), 3),
        "trainer_waits": round(waited / fleet.now, 3),
        "lag_mean": round(statistics.fmean(lags), 2),
        "lag_max": max(lags),
        "groups_trained": len(lags),
        "groups_drawn": drawn,
        "microseconds_per_decision": round(thinking / decisions * 1e6, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=8, help="groups an engine runs at a time")
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    # A batch is what the fleet holds, so that one step ahead fills it; async schedules have as many places and need not fill batch by batch.
    shape = Shape(args.engines, args.slots, args.engines * args.slots, args.steps)
    rng = random.Random(1)
    mean = statistics.fmean(
        max(min(LONGEST, rng.lognormvariate(7.0, 1.0)) for _ in range(shape.answers)) / TOKENS_PER_SECOND
        for _ in range(20_000)
    )
    train_seconds = mean * shape.size / shape.places
    began = time.perf_counter()
    rows = {
        "synchronous": simulate(shape, 0, True, train_seconds),
        "one-step-ahead": simulate(shape, 1, True, train_seconds),
    }
    rows |= {f"in-flight, lag {lag}": simulate(shape, lag, False, train_seconds) for lag in (1, 2, 4, 8)}
    result = {
        "engines": shape.engines,
        "groups_in_flight": shape.places,
        "groups_a_step": shape.size,
        "steps": shape.steps,
        "train_seconds": round(train_seconds, 1),
        "mean_group_seconds": round(mean, 1),
        "longest_group_seconds": LONGEST / TOKENS_PER_SECOND,
        "schedules": rows,
    }
    print(json.dumps(result, indent=1))
    print(f"simulated in {time.perf_counter() - began:.0f} s")
    path = ROOT / "benchmarks" / "results" / "async-scale.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(result, indent=1) + "\n")
    temporary.replace(path)


if __name__ == "__main__":
    main()
