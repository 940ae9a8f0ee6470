"""The schedules of generation on the toy: what they learn, and how long they take; results as JSON and a plot.

    python benchmarks/async/run.py curves [--steps 40]               the reward of every schedule, step by step
    python benchmarks/async/run.py ragged [--steps 30] [--repeats 3]  seconds to a reward, fully async / synchronous, interleaved

`ragged` has words of 3 letters and, one in five, of 16 to 24 (see ragged.py). Every side has the same prompts, seeds, model and threads. Results
go to benchmarks/results/, the plot beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from vime import environment  # noqa: E402
from vime.observe.metrics import read_metrics  # noqa: E402
from vime.toy.flags import default_flags  # noqa: E402

CACHE = ROOT / ".cache" / "bench"
RESULTS = ROOT / "benchmarks" / "results"
WINDOW = 5
SCHEDULES = {
    "synchronous": [],
    "one-step-ahead": ["--rollout-schedule", "one-step-ahead"],
    "fully-async": ["--rollout-schedule", "fully-async", "--partial-rollout"],
    "in-flight": ["--rollout-schedule", "in-flight", "--flush-cache-interval", "4"],
}
RAGGED = ["--rollout-max-response-len", "26"]


def train(name: str, steps: int, seed: int, threads: int, more: list[str], toy: Path) -> list[dict[str, Any]]:
    """The step records of one run of train.py on the toy in folder `toy`."""
    folder = CACHE / "runs" / f"{name}-{int(time.time())}"
    flags = default_flags(steps, seed, toy, evaluate=False)
    variables = os.environ | environment.WAIT_POLICY | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *flags, "--run-dir", str(folder), *more],
        env=variables,
        cwd=CACHE,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return list(read_metrics(folder, "step"))


def side(records: list[dict[str, Any]]) -> dict[str, Any]:
    """What of a run's records the results keep. `ends`: seconds from the start of the first step."""
    first = records[0]["time"] - records[0]["perf/step_time"]
    return {
        "ends": [round(one["time"] - first, 2) for one in records],
        "rewards": [round(one["rollout/raw_reward"], 4) for one in records],
        "staleness_mean": [round(one["rollout/staleness/mean"], 3) for one in records],
        "staleness_max": [one["rollout/staleness/max"] for one in records],
        "wait_share": [round(one["rollout/pool/wait_share"], 3) for one in records],
        "samples": [one["rollout/samples"] for one in records],
    }


def smooth(values: list[float]) -> list[float]:
    return [statistics.fmean(values[max(0, i - WINDOW + 1) : i + 1]) for i in range(len(values))]


def seconds_to_mark(pair: list[dict[str, Any]]) -> tuple[float, list[float]]:
    """The reward that both runs reach, and the seconds each of them takes to it, by the least-squares line of reward over time.

    A line, since within 30 steps sampling moves the mean of a few of them by as much as ten steps of learning do.
    """
    lines = [statistics.linear_regression(one["ends"], one["rewards"]) for one in pair]
    mark = min(line.slope * one["ends"][-1] + line.intercept for line, one in zip(lines, pair, strict=True))
    return mark, [(mark - line.intercept) / line.slope for line in lines]


def curves(args: argparse.Namespace) -> dict[str, Any]:
    kept = CACHE / f"curves-{args.steps}-{args.seed}.json"  # a run takes minutes: what is there is not run again
    found = json.loads(kept.read_text()) if kept.exists() and not args.fresh else {}
    for name, flags in SCHEDULES.items():
        if name not in found:
            found[name] = side(train(f"curve-{name}", args.steps, args.seed, args.threads, flags, CACHE / "toy"))
            kept.write_text(json.dumps(found))
        last = statistics.fmean(found[name]["rewards"][-WINDOW:])
        print(f"{name}: {last:.3f} at the end, {found[name]['ends'][-1]:.0f} s", flush=True)
    kept.unlink()
    plot(found, RESULTS / "async-curves.png")
    last = {name: round(statistics.fmean(one["rewards"][-10:]), 4) for name, one in found.items()}
    return {"reward_of_last_ten_steps": last, "runs": found}


def ragged(args: argparse.Namespace) -> dict[str, Any]:
    toy = CACHE / "ragged"
    make = [sys.executable, str(Path(__file__).with_name("ragged.py")), str(toy / f"seed{args.seed}"), str(args.seed)]
    subprocess.run(make, check=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    sides: dict[str, list[dict[str, Any]]] = {"synchronous": [], "fully-async": []}
    for repeat in range(args.repeats):
        for name, runs in sides.items():
            flags = SCHEDULES[name] + RAGGED
            runs.append(side(train(f"ragged-{name}", args.steps, args.seed, args.threads, flags, toy)))
        pair = [runs[-1] for runs in sides.values()]
        mark, seconds = seconds_to_mark(pair)
        for one, took in zip(pair, seconds, strict=True):
            one["mark"], one["seconds_to_mark"] = round(mark, 4), round(took, 2)
        print(f"repeat {repeat + 1}: {[(one['seconds_to_mark'], one['ends'][-1]) for one in pair]}", flush=True)
    pairs = list(zip(sides["synchronous"], sides["fully-async"], strict=True))
    reward = [a["seconds_to_mark"] / b["seconds_to_mark"] for a, b in pairs]
    speed = [a["ends"][-1] / b["ends"][-1] for a, b in pairs]
    return {
        "time_to_reward_ratio": {"median": round(statistics.median(reward), 3), "each": [round(x, 3) for x in reward]},
        "time_of_all_steps_ratio": {"median": round(statistics.median(speed), 3), "each": [round(x, 3) for x in speed]},
        "runs": sides,
    }


def plot(found: dict[str, dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    for name, one in found.items():
        mean, most = statistics.fmean(one["staleness_mean"]), max(one["staleness_max"])
        label = f"{name}: lag {mean:.1f} on average, {most:.0f} at most"
        axes.plot(range(1, len(one["rewards"]) + 1), smooth(one["rewards"]), label=label)
    axes.set(
        xlabel="training step", ylabel=f"training reward, mean of {WINDOW} steps", title="The toy under each schedule"
    )
    axes.legend(fontsize=8, loc="upper left")
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("curves", "ragged"))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--fresh", action="store_true", help="run again what an interrupted `curves` had finished")
    args = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    result = {"machine": f"{platform.machine()}, {environment.cores()} cores", "steps": args.steps}
    result |= curves(args) if args.what == "curves" else ragged(args)
    result["load_average"] = [round(value, 1) for value in os.getloadavg()]  # seconds mean little on a busy machine
    path = RESULTS / f"async-{args.what}.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(result, indent=1) + "\n")
    temporary.replace(path)
    print(f"written: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
