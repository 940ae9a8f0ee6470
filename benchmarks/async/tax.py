"""The price of durability: step time with the Straw queue over step time in memory; results as JSON.

    python benchmarks/async/tax.py runs [--steps 40] [--repeats 3]    train.py on the toy with both transports, a step each in turn: time and CPU time
    python benchmarks/async/tax.py store [--steps 60]                 the store alone under a step of fixed length, both kinds step by step

`runs` is the figure that counts. `store` tells, in a minute and on a busy machine too, how long a step's batch is still on its way to the disk
when training has ended, and what the writer costs in CPU time: its engine and trainer are pauses.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import turns  # noqa: E402

from vime import environment  # noqa: E402

environment.prepare(1)

from vime.arguments import parse_args  # noqa: E402
from vime.data.source import RolloutDataSourceWithBuffer  # noqa: E402
from vime.durable.store import DurableStore  # noqa: E402
from vime.rollout.pool.store import MemoryStore  # noqa: E402
from vime.sample import ResponseMeta, Status, VersionSpan  # noqa: E402
from vime.toy import model, words  # noqa: E402
from vime.toy.flags import default_flags  # noqa: E402

CACHE = ROOT / ".cache" / "bench"
RESULTS = ROOT / "benchmarks" / "results"
WARM_UP = 3
SIDES = ("object-store", "straw")
GROUPS, SAMPLES, TOKENS = 32, 8, 8
GENERATE, TRAIN = 0.6, 0.4


def runs(steps: int, repeats: int) -> dict[str, Any]:
    """train.py with each transport, beside each other and a step each in turn (see turns.py): of each pair of steps, which have the same prompts,
    how much longer the one with the queue takes. What it leaves to be done after a step counts as if the step had waited for it.
    """
    pairs: dict[str, list[dict[str, float]]] = {name: [] for name in SIDES}
    ratios: list[float] = []
    for repeat in range(repeats):
        measured = side_by_side(steps, CACHE / "durable" / f"turns-{repeat}-{int(time.time())}")
        for name, found in measured.items():
            pairs[name] += found
        ratios.append(ratio(measured, whole))
        print(f"repeat {repeat + 1}: {ratios[-1]:.4f}, CPU {ratio(measured, cpu):.4f}", flush=True)
    return {
        "steps": steps,
        "repeats": repeats,
        "pairs": len(pairs["straw"]),
        "median_seconds": {
            name: round(statistics.median(one["seconds"] for one in found), 4) for name, found in pairs.items()
        },
        "median_rest_cpu_seconds": {
            name: round(statistics.median(one["rest"] for one in found), 4) for name, found in pairs.items()
        },
        "ratio_of_each_repeat": [round(one, 4) for one in ratios],
        "ratio": round(ratio(pairs, whole), 4),
        "cpu_seconds_a_step": {
            name: round(statistics.fmean(one["cpu"] for one in found), 4) for name, found in pairs.items()
        },
        "cpu_ratio": round(ratio(pairs, cpu), 4),
        "load_average": [round(value, 1) for value in os.getloadavg()],  # seconds mean little on a busy machine
    }


def whole(straw: dict[str, float], memory: dict[str, float]) -> float:
    return (straw["seconds"] + straw["rest"]) / (memory["seconds"] + memory["rest"])


def cpu(straw: dict[str, float], memory: dict[str, float]) -> float:
    return (straw["cpu"] + straw["rest"]) / (memory["cpu"] + memory["rest"])


def ratio(measured: dict[str, list[dict[str, float]]], of: Callable[..., float]) -> float:
    """Median over the pairs of steps."""
    return statistics.median(map(of, measured["straw"], measured["object-store"]))


def side_by_side(steps: int, folder: Path) -> dict[str, list[dict[str, float]]]:
    """The steps of both runs but the first and the last ones, when the other one starts or ends."""
    drivers: dict[str, subprocess.Popen[bytes]] = {}
    for name in SIDES:
        (folder / name).mkdir(parents=True)
    for name in SIDES:
        run_id = f"tax-{os.getpid()}-{name[0]}{folder.name[-10:]}"  # short: Ray's sockets lie below it
        flags = [*default_flags(steps, 0, CACHE / "toy", evaluate=False), "--run-id", run_id]
        flags += [
            "--run-dir",
            str(folder / name / "run"),
            "--custom-megatron-before-train-step-hook-path",
            "turns.before_step",
        ]
        flags += ["--rollout-data-transport", name, "--rollout-data-dir", str(folder / name / "queue")]
        place = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
        with open(folder / f"{name}.log", "wb") as log:
            drivers[name] = subprocess.Popen(
                [sys.executable, str(ROOT / "train.py"), *flags],
                stdout=log, stderr=subprocess.STDOUT, env=os.environ | {"PYTHONPATH": place, turns.FOLDER: str(folder), turns.SIDE: name},
            )  # fmt: skip
        (folder / name / "pid").write_text(str(drivers[name].pid))
    running = dict(drivers)
    while running:
        time.sleep(0.05)
        for name in [name for name, driver in running.items() if driver.poll() is not None]:
            del running[name]
            if drivers[name].returncode:
                for driver in running.values():
                    driver.terminate()
                raise SystemExit(f"{name} failed:\n{(folder / f'{name}.log').read_text(errors='replace')[-4000:]}")
            (folder / name / "over").touch()
            turns.give(folder, name)
    found = {name: (folder / name / "steps.jsonl").read_text().splitlines() for name in SIDES}
    return {name: [json.loads(line) for line in lines][WARM_UP:-1] for name, lines in found.items()}


def store(steps: int) -> dict[str, Any]:
    """A step of each store after the other, for as long as a toy step takes."""
    folder = CACHE / "durable" / "store"
    shutil.rmtree(folder, ignore_errors=True)
    model.write_model(folder / "model", seed=0)
    words.write_rows(folder / "train.jsonl", itertools.islice(words.words(1), GROUPS * steps))
    flags = {
        "--hf-checkpoint": folder / "model",
        "--prompt-data": folder / "train.jsonl",
        "--input-key": "prompt",
        "--label-key": "answer",
        "--rm-type": "reverse_word",
        "--num-rollout": steps,
        "--rollout-batch-size": GROUPS,
        "--n-samples-per-prompt": SAMPLES,
        "--rollout-max-response-len": TOKENS,
        "--device": "cpu",
        "--rollout-data-transport": "straw",
        "--rollout-data-dir": folder / "queue",
    }
    args = parse_args([str(part) for pair in flags.items() for part in pair])
    args.load = args.save = None
    prompts = RolloutDataSourceWithBuffer(args).prompts
    memory, durable = (kind(args, RolloutDataSourceWithBuffer(args, prompts)) for kind in (MemoryStore, DurableStore))
    durable.load(-1)
    times: dict[str, list[float]] = {"memory": [], "straw": []}
    waits = []
    busy = 0.0
    for step in range(steps):
        for name, one in (("memory", memory), ("straw", durable)):
            began, spent = time.perf_counter(), time.process_time()
            whole_step(one, step)
            trained = time.perf_counter()
            one.trained(step)
            one.sync(step - 1)
            times[name].append(time.perf_counter() - began)
            if name == "straw":
                waits.append(time.perf_counter() - trained)
                busy += time.process_time() - spent
            else:
                busy -= time.process_time() - spent
    durable.close()
    medians = {name: statistics.median(values[WARM_UP:]) for name, values in times.items()}
    return {
        "steps": steps,
        "groups": GROUPS,
        "samples": GROUPS * SAMPLES,
        "median_seconds": {name: round(value, 4) for name, value in medians.items()},
        "ratio": round(medians["straw"] / medians["memory"], 4),
        "wait_after_training_median_seconds": round(statistics.median(waits[WARM_UP:]), 4),
        "writer_cpu_seconds_a_step": round(busy / steps, 4),
    }


def whole_step(one: Any, step: int) -> None:
    """Claim, answers that come in over the time of generation, the plan, and the time of training."""
    tasks = one.claim(GROUPS)
    for task in tasks:
        time.sleep(GENERATE / GROUPS)
        for sample in task.group:
            meta = ResponseMeta(versions=[VersionSpan(str(step), 0, TOKENS)])
            sample.append_response_tokens(None, list(range(TOKENS)), [-0.5] * TOKENS, meta_info=meta, text="x" * TOKENS)
            sample.status, sample.reward = Status.COMPLETED, 1.0
        one.accept(task.task_id, task.group)
    one.plan(step, [task.task_id for task in tasks])
    time.sleep(TRAIN)


def facts() -> dict[str, Any]:
    return {
        "machine": platform.processor() or platform.machine(),
        "cores": environment.cores(),
        "python": platform.python_version(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("runs", "store"))
    parser.add_argument("--steps", type=int)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    found = runs(args.steps or 40, args.repeats) if args.what == "runs" else store(args.steps or 60)
    path = RESULTS / f"durable-{args.what}.json"
    path.write_text(json.dumps(facts() | found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
