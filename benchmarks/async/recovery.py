"""How soon a killed run trains again: seconds from a SIGKILL to the next step, over seconds from a cold start to the first; results as JSON.

    python benchmarks/async/recovery.py [--repeats 3]

The toy with the Straw queue and a checkpoint every second step. Each repeat starts cold, kills the driver in the middle of a step and gives the
same command again at once; there, with --use-fault-tolerance, the trainer is killed, which is replaced beside the living engine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from vime import environment  # noqa: E402

environment.prepare(1)

from tests.e2e.runtime.driver import Driver  # noqa: E402
from vime.cluster import processes  # noqa: E402
from vime.durable.audit import audit  # noqa: E402
from vime.toy.flags import default_flags  # noqa: E402

CACHE = ROOT / ".cache" / "bench"
RESULTS = ROOT / "benchmarks" / "results"
STEPS = 14


def step(driver: Driver) -> float:
    """When the next step's line came."""
    driver.until(rf"step +\d+/{STEPS}")
    return time.monotonic()


def once(number: int) -> dict[str, float]:
    """Seconds of a cold start, of the same command after the driver was killed, and of a trainer's replacement."""
    folder, run_id = CACHE / "durable" / f"recovery-{number}-{int(time.time())}", f"recovery-{os.getpid()}-{number}"
    flags = [
        *default_flags(STEPS, 0, CACHE / "toy", evaluate=False),
        "--rollout-data-transport",
        "straw",
        "--use-fault-tolerance",
    ]
    flags += ["--save", str(folder), "--load", str(folder), "--save-interval", "2", "--run-id", run_id]

    begun = time.monotonic()
    driver = Driver(flags)
    cold = step(driver) - begun
    for _ in range(2):
        step(driver)
    time.sleep(0.3)  # in the middle of the fourth
    killed = time.monotonic()
    driver.process.kill()
    driver.process.wait()
    driver = Driver(flags)
    again = step(driver) - killed

    for _ in range(2):
        step(driver)
    time.sleep(0.3)
    trainer = next(one.pid for one in processes.processes(run_id) if "TrainerActor" in one.command)
    killed = time.monotonic()
    os.kill(trainer, signal.SIGKILL)
    replaced = step(driver) - killed
    code, output = driver.finish()
    if code:
        raise SystemExit(f"the run failed:\n{output[-4000:]}")
    report = audit(folder, deep=True)
    if report.findings or report.trained_steps != STEPS:
        raise SystemExit(report.render())
    return {"cold_start": cold, "driver_killed": again, "trainer_replaced": replaced}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    found = []
    for number in range(args.repeats):
        found.append(once(number))
        print({name: round(value, 1) for name, value in found[-1].items()}, flush=True)
    medians = {name: statistics.median(one[name] for one in found) for name in found[0]}
    result: dict[str, Any] = {
        "machine": f"{platform.machine()}, {environment.cores()} cores",
        "repeats": args.repeats,
        "median_seconds_to_a_step": {name: round(value, 2) for name, value in medians.items()},
        "each": [{name: round(value, 2) for name, value in one.items()} for one in found],
        "driver_killed_over_cold_start": round(medians["driver_killed"] / medians["cold_start"], 3),
        "trainer_replaced_over_cold_start": round(medians["trainer_replaced"] / medians["cold_start"], 3),
    }
    path = RESULTS / "durable-recovery.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
