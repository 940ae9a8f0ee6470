"""One GPU trains, one generates: how much the schedules that run ahead gain over taking turns, against the bound 1 / max(f, 1 - f).

f is the share of a synchronous step that is generation. Beside them: the same work colocated on both GPUs, and with a durable queue. The first steps
of a run have answers of one length, each at its longest; in the others one answer in eight may be that long and the rest an eighth of it.

All runs start side by side, since a start takes longer than what is measured, and then train one after another (see gated.py).
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import GRAPHS, ROOT, WORK, metrics_of, model_folder, report
from gated import GATE, RAGGED_FROM
from rollout import prompt_file

from benchmarks.marked import tell

PROMPTS, GROUP, TOKENS = 16, 16, 512
EVEN, RAGGED = 7, 9
#: Steps whose mean counts: the first ones warm up and fill the pool, the last has nothing drawn behind it.
MEASURED = {"even": range(2, EVEN), "ragged": range(EVEN + 2, EVEN + RAGGED - 1)}
#: A little more in flight than the engine works on: what waits in it only ages.
AHEAD = ["--rollout-num-gpus", "1", "--partial-rollout", "--vllm-server-concurrency", "288"]
RUNS: dict[str, list[str]] = {
    "synchronous": ["--rollout-num-gpus", "1"],
    "fully-async": [*AHEAD, "--rollout-schedule", "fully-async"],
    "in-flight": [*AHEAD, "--rollout-schedule", "in-flight", "--flush-cache-interval", "2"],
    "in-flight-straw": [
        *(*AHEAD, "--rollout-schedule", "in-flight", "--flush-cache-interval", "2"),
        *("--rollout-data-transport", "straw"),
    ],
    "colocated": ["--colocate", "--actor-num-gpus-per-node", "2"],
}
NAMES = ("perf/step_time", "perf/rollout_time", "perf/actor_train_wall_time", "perf/update_weights_time")


def flags() -> list[str]:
    """Of every run. A share of an engine's GPU and a fixed cache, since several engines wait on it."""
    words: dict[str, Any] = {
        "--hf-checkpoint": model_folder("0.6b"), "--prompt-data": prompt_file(), "--input-key": "prompt", "--label-key": "answer",
        "--rm-type": "random", "--num-rollout": EVEN + RAGGED, "--rollout-batch-size": PROMPTS, "--n-samples-per-prompt": GROUP,
        "--rollout-max-response-len": TOKENS, "--rollout-max-context-len": 1024, "--lr": 1e-6, "--device": "cuda", "--actor-num-gpus-per-node": 1,
        "--vllm-max-num-seqs": 256, "--vllm-gpu-memory-utilization": 0.14, "--vllm-kv-cache-memory-bytes": 16 << 30, "--max-tokens-per-gpu": 16384,
        "--vllm-compilation-config": GRAPHS, "--parity-threshold": 1e9, "--vllm-start-timeout": 400,
    }  # fmt: skip
    return [
        *(str(word) for pair in words.items() for word in pair),
        *("--bf16", "--use-dynamic-batch-size", "--calculate-per-token-loss"),
    ]


class Started:
    """A run of train.py that waits for its turn. Its output goes to a file."""

    def __init__(self, name: str, more: list[str]) -> None:
        self.name, self.run_id = name, f"schedule-{name}"
        self.gate, self.directory = WORK / "gates" / name, WORK / "runs" / self.run_id
        self.log = WORK / "logs" / f"{self.run_id}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        place = str(ROOT / "benchmarks" / "gpu")
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, [place, os.environ.get("PYTHONPATH")])),
            GATE: str(self.gate),
            RAGGED_FROM: str(EVEN * PROMPTS),
        }
        own = ["--run-dir", str(self.directory), "--run-id", self.run_id, "--data-source-path", "gated.Source"]
        if "straw" in more:
            own += ["--rollout-data-dir", str(WORK / "runs" / f"{self.run_id}-queue")]
        with open(self.log, "w") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(ROOT / "train.py"), *flags(), *more, *own],
                cwd=WORK, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    @property
    def ready(self) -> bool:
        return (self.gate / "ready").exists() or self.process.poll() is not None

    def measure(self, seconds: float) -> dict[str, Any]:
        """Let it train, for so long at most, and say how its steps went."""
        self.gate.mkdir(parents=True, exist_ok=True)
        (self.gate / "go").touch()
        last = re.compile(rf"^step +{EVEN + RAGGED}/", re.MULTILINE)
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < deadline and not last.search(self.log.read_text()):
            time.sleep(0.1)
        steps = metrics_of(self.directory) if self.directory.exists() else []
        found: dict[str, Any] = {"steps": len(steps), "exit_code": self.process.poll()}
        if len(steps) < EVEN + RAGGED:
            found["error"] = self.log.read_text(errors="replace")[-600:]
        for kind, chosen in MEASURED.items():
            if (rows := [steps[i] for i in chosen if i < len(steps)]) and len(rows) == len(chosen):
                found[kind] = {name.removeprefix("perf/"): mean(row.get(name) for row in rows) for name in NAMES}
                found[kind]["tokens"] = mean(tokens(row) for row in rows)
                found[kind]["staleness"] = mean(row.get("rollout/staleness/mean") for row in rows)
                found[kind]["wait_share"] = mean(row.get("rollout/pool/wait_share") for row in rows)
        found["step_s"] = [round(row["perf/step_time"], 3) for row in steps if "perf/step_time" in row]
        return found

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()  # its guardian ends the rest


def tokens(row: dict[str, Any]) -> float:
    return float(row["rollout/response_lengths"] * row["rollout/samples"])


def mean(values: Iterator[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return round(sum(there) / len(there), 4) if there else None


def compare(result: dict[str, Any]) -> None:
    """Gains over taking turns, and what part of the bound they are."""
    for kind in MEASURED:
        turns = result.get("synchronous", {}).get(kind)
        if turns is None:
            continue
        share = turns["rollout_time"] / turns["step_time"]
        bound = 1 / max(share, 1 - share)
        found: dict[str, Any] = {"generation_share": round(share, 3), "bound": round(bound, 3)}
        for name in set(result) & (RUNS.keys() - {"synchronous"}):
            if other := result[name].get(kind):
                gain = turns["step_time"] / other["step_time"]
                found[name] = {"gain": round(gain, 3), "of_bound": round(gain / bound, 3)}
        plain, straw = (result.get(name, {}).get(kind) for name in ("in-flight", "in-flight-straw"))
        if plain and straw:
            found["straw_over_memory"] = round(straw["step_time"] / plain["step_time"], 3)
        result[f"compared_{kind}"] = found


def await_starts(runs: list[Started], hold: Path | None, deadline: float) -> None:
    """Until all runs have started, or failed to, and `hold` exists."""
    while time.monotonic() < deadline and not (all(run.ready for run in runs) and (hold is None or hold.exists())):
        time.sleep(0.5)


def part() -> dict[str, Any]:
    options = argparse.ArgumentParser()
    options.add_argument("--runs", default=",".join(RUNS), help="in this order")
    options.add_argument("--hold", type=Path, help="measure nothing before this file exists")
    options.add_argument("--start-seconds", type=float, default=300)
    options.add_argument("--seconds", type=float, default=110, help="for a run, once it has started")
    given = options.parse_args()
    began = time.monotonic()
    result: dict[str, Any] = {
        "samples": PROMPTS * GROUP,
        "longest": TOKENS,
        "steps": {"even": EVEN, "ragged": RAGGED},
        "measured": {kind: list(steps) for kind, steps in MEASURED.items()},
    }
    runs = [Started(name, RUNS[name]) for name in given.runs.split(",")]
    signal.signal(signal.SIGTERM, _stop)
    try:
        await_starts(runs, given.hold, began + given.start_seconds)
        result["started_after_s"] = {run.name: run.ready for run in runs} | {"all": round(time.monotonic() - began, 1)}
        for run in runs:
            result[run.name] = run.measure(given.seconds) if run.ready else {"error": "it did not start in time"}
            compare(result)
            tell(result)  # what is known when time ends counts
            if result[run.name].get("steps") != EVEN + RAGGED:
                run.end()
    except InterruptedError as stopped:
        result["error"] = str(stopped)
    finally:
        for run in runs:
            run.end()
    return result


def _stop(*_: Any) -> None:
    raise InterruptedError("ended before all runs had their turn")


if __name__ == "__main__":
    report(part)
