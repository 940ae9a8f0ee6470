"""The price of durability: step time with the Straw queue over step time in memory; results as JSON.

    python benchmarks/async/tax.py runs [--steps 80] [--repeats 3]    train.py on the toy, its steps with and without in turn: time and CPU time
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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from vime import environment  # noqa: E402

environment.prepare(1)

import alternate  # noqa: E402

from vime.arguments import parse_args  # noqa: E402
from vime.data.source import RolloutDataSourceWithBuffer  # noqa: E402
from vime.durable.store import DurableStore  # noqa: E402
from vime.observe.metrics import read_metrics  # noqa: E402
from vime.rollout.pool.store import MemoryStore  # noqa: E402
from vime.sample import ResponseMeta, Status, VersionSpan  # noqa: E402
from vime.toy import model, words  # noqa: E402
from vime.toy.flags import default_flags  # noqa: E402

CACHE = ROOT / ".cache" / "bench"
RESULTS = ROOT / "benchmarks" / "results"
WARM_UP = 3
SIDES = ("memory", "straw")
GROUPS, SAMPLES, TOKENS = 32, 8, 8
GENERATE, TRAIN = 0.6, 0.4


def runs(steps: int, repeats: int) -> dict[str, Any]:
    """train.py, its steps kept in memory and in a queue in turn (see alternate.py): how much longer a step with the queue takes, with what it
    leaves to be written afterwards, than the mean of its two neighbours.
    """
    found: list[list[Step]] = []
    for repeat in range(repeats):
        found.append(one_run(steps, CACHE / "durable" / f"alternate-{int(time.time())}"))
        print(f"repeat {repeat + 1}: {ratio(found[-1], 'seconds'):.4f}, CPU {ratio(found[-1], 'cpu'):.4f}", flush=True)
    every = [step for own in found for step in own]
    return {
        "steps": steps,
        "repeats": repeats,
        "compared": len(every),
        "seconds": {
            name: round(statistics.median(step.seconds[i] for step in every), 4) for i, name in enumerate(SIDES)
        },
        "rest_seconds": round(statistics.median(step.rest for step in every), 4),
        "ratio_of_each_repeat": [round(ratio(own, "seconds"), 4) for own in found],
        "ratio": round(ratio(every, "seconds"), 4),
        "quartiles": [round(one, 4) for one in statistics.quantiles(ratios(every, "seconds"))],
        "cpu_seconds": {
            name: round(statistics.fmean(step.cpu[i] for step in every), 4) for i, name in enumerate(SIDES)
        },
        "cpu_ratio": round(ratio(every, "cpu"), 4),
        "load_average": [round(value, 1) for value in os.getloadavg()],  # seconds mean little on a busy machine
    }


@dataclass(frozen=True)
class Step:
    """A step with the queue beside the mean of its neighbours, as (in memory, with the queue). `rest` is in its seconds."""

    seconds: tuple[float, float]
    cpu: tuple[float, float]
    rest: float


def ratios(steps: Sequence[Step], of: str) -> list[float]:
    return [queue / memory for memory, queue in (getattr(step, of) for step in steps)]


def ratio(steps: Sequence[Step], of: str) -> float:
    """Median over the steps."""
    return statistics.median(ratios(steps, of))


def one_run(steps: int, folder: Path) -> list[Step]:
    """Its steps with the queue, without those of the warm-up."""
    folder.mkdir(parents=True)
    run_id = f"tax-{os.getpid()}-{folder.name[-10:]}"  # short: Ray's sockets lie below it
    flags = [
        *default_flags(steps, 0, CACHE / "toy", evaluate=False),
        "--run-id",
        run_id,
        "--run-dir",
        str(folder / "run"),
    ]
    flags += ["--rollout-data-transport", "straw", "--rollout-data-dir", str(folder / "queue")]
    flags += ["--data-source-path", "alternate.Source"]
    place = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    with open(folder / "log", "wb") as log:
        ended = subprocess.run(
            [sys.executable, str(ROOT / "train.py"), *flags],
            stdout=log, stderr=subprocess.STDOUT, env=os.environ | {"PYTHONPATH": place}, check=False,
        )  # fmt: skip
    if ended.returncode:
        raise SystemExit(f"train.py failed:\n{(folder / 'log').read_text(errors='replace')[-4000:]}")
    records = map(json.loads, (folder / "run" / alternate.FILE).read_text().splitlines())
    after = {int(record["step"]): record for record in records}
    took = {int(line["rollout_id"]): float(line["perf/step_time"]) for line in read_metrics(folder / "run", "step")}

    def seconds(step: int) -> float:
        """What the step before left is not its own."""
        return took[step] - float(after[step - 1]["rest"])

    found = []
    for step in filter(alternate.durable, range(WARM_UP, steps - 1)):
        rest = float(after[step]["rest"])
        found.append(
            Step(
                ((seconds(step - 1) + seconds(step + 1)) / 2, seconds(step) + rest),
                ((after[step - 1]["cpu"] + after[step + 1]["cpu"]) / 2, after[step]["cpu"]),
                rest,
            )
        )
    return found


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
    found = runs(args.steps or 80, args.repeats) if args.what == "runs" else store(args.steps or 60)
    path = RESULTS / f"durable-{args.what}.json"
    path.write_text(json.dumps(facts() | found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
