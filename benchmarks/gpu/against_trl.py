"""Time a step against TRL with vLLM in its process: the toy of 57 million parameters, and the shape of Qwen3-0.6B with long answers.

Our side's figures come from the parts `learn-resident` and `rollout-0.6b`, which train on the same checkpoints and prompts, with the same group,
answer length and number of updates.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import GRAPHS, WORK, attempt, median, model_folder, report

from benchmarks.marked import told


def peer(model: Path, prompts: Path, seconds: float, **options: Any) -> dict[str, Any]:
    command = [
        sys.executable,
        str(Path(__file__).with_name("trl_peer.py")),
        "--model",
        str(model),
        "--prompts",
        str(prompts),
    ]
    command += [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    for found in told(done.stdout):
        return found | {"step_s_median": round(median(found["step_s"]), 4), "command": " ".join(command[1:])}
    print(done.stdout[-1500:], done.stderr[-3000:], flush=True)
    raise RuntimeError(done.stderr.strip()[-300:])


def wait_for(path: Path, seconds: float) -> Path:
    """Parts that run beside this one make the models; this one starts when they are there."""
    end = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < end:
        time.sleep(1)
    if not path.exists():
        raise RuntimeError(f"{path.name} was not made: run the part that makes it first")
    return path


def part() -> dict[str, Any]:
    options = argparse.ArgumentParser()
    options.add_argument("models", nargs="*", default=["toy", "0.6b"])
    models = options.parse_args().models
    result: dict[str, Any] = {}
    toy = WORK / "toy" / "large-seed0"
    if "toy" in models:
        attempt(
            result, "toy",
            lambda: peer(
                wait_for(toy / "start" / "warmup.json", 90).parent, toy / "train.jsonl", 140, steps=25, batch=64, tokens=13, updates=2, graphs=GRAPHS
            ),
        )  # fmt: skip
    if "0.6b" in models:
        prompts = WORK / "prompts.jsonl"
        attempt(
            result, "0.6b",
            lambda: peer(model_folder("0.6b"), wait_for(prompts, 60), 200, steps=4, batch=32, tokens=512, micro=32, lr=1e-6, graphs=GRAPHS),
        )  # fmt: skip
    return result


report(part)
