"""The price of durability: step time with the Straw queue over step time in memory; results as JSON.

    python benchmarks/async/tax.py runs [--steps 40] [--repeats 3]    train.py on the toy with both transports in turn: median step and CPU time
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
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from vime import environment  # noqa: E402

environment.prepare(1)

from vime.arguments import parse_args  # noqa: E402
from vime.cluster import processes  # noqa: E402
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
GROUPS, SAMPLES, TOKENS = 32, 8, 8
GENERATE, TRAIN = 0.6, 0.4


def runs(steps: int, repeats: int) -> dict[str, Any]:
    """Medians of train.py with each transport, in turn, the first steps left out: wall time of a step, and the CPU time of all processes.

    The first is the price on this machine as it was. The second does not hang on what else ran, and is the price where no core is idle.
    """
    seconds: dict[str, list[float]] = {"object-store": [], "straw": []}
    cpu: dict[str, list[float]] = {name: [] for name in seconds}
    ratios: list[float] = []
    for repeat in range(repeats):
        medians = {}
        for transport in seconds:
            measured, spent = run(transport, steps, CACHE / "durable" / f"{transport}-{repeat}-{int(time.time())}")
            seconds[transport] += measured
            cpu[transport].append(spent)
            medians[transport] = statistics.median(measured)
        ratios.append(medians["straw"] / medians["object-store"])
        print(
            f"repeat {repeat + 1}: {medians} s, CPU {[round(values[-1], 3) for values in cpu.values()]} s", flush=True
        )
    spent_each = {name: statistics.median(values) for name, values in cpu.items()}
    return {
        "steps": steps,
        "repeats": repeats,
        "median_seconds": {name: round(statistics.median(values), 4) for name, values in seconds.items()},
        "ratios": [round(one, 4) for one in ratios],
        "ratio": round(statistics.median(ratios), 4),
        "cpu_seconds_a_step": {name: round(value, 4) for name, value in spent_each.items()},
        "cpu_ratio": round(spent_each["straw"] / spent_each["object-store"], 4),
        "load_average": [round(value, 1) for value in os.getloadavg()],  # seconds mean little on a busy machine
    }


def run(transport: str, steps: int, folder: Path) -> tuple[list[float], float]:
    """Seconds of each step after the first, and CPU seconds a step from there to the last but one."""
    run_id = f"tax-{os.getpid()}-{folder.name[-10:]}"  # short: Ray's sockets lie below it
    flags = [*default_flags(steps, 0, CACHE / "toy", evaluate=False), "--run-dir", str(folder), "--run-id", run_id]
    flags += ["--rollout-data-transport", transport, "--rollout-data-dir", str(folder / "queue")]
    driver = subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *flags], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert driver.stdout is not None
    lines, marks = [], {}
    for line in driver.stdout:
        lines.append(line)
        if found := re.match(r"step +(\d+)/", line):
            pids = [driver.pid, *(one.pid for one in processes.processes(run_id))]
            marks[int(found[1])] = sum(map(cpu_seconds, pids))
    if driver.wait():
        raise SystemExit(f"{transport} failed:\n{''.join(lines[-60:])}")
    measured = [float(one["perf/step_time"]) for one in read_metrics(folder, "step")][WARM_UP:]
    return measured, (marks[steps - 1] - marks[WARM_UP]) / (steps - 1 - WARM_UP)


def cpu_seconds(pid: int) -> float:
    """Of all threads of a process, since it began."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
