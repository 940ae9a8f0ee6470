"""One GPU trains, one generates: how much the schedules that run ahead gain over taking turns, against the bound 1 / max(f, 1 - f).

f is the share of a synchronous step that is generation. The same work on both GPUs colocated is beside them. Lengths are even (every answer
at its longest), and ragged 8:1 through a generate function that caps one answer in eight at the longest and the others at an eighth.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from common import GRAPHS, ROOT, attempt, median, model_folder, report, run_training
from rollout import prompt_file

PROMPTS, GROUP, TOKENS, STEPS = 16, 16, 512, 7
SCHEDULES = {
    "synchronous": ["--rollout-schedule", "synchronous"],
    "fully-async": ["--rollout-schedule", "fully-async"],
    "in-flight": ["--rollout-schedule", "in-flight", "--flush-cache-interval", "2"],
}


def measure(folder: Path, prompts: Path, name: str, extra: list[str], ragged: bool) -> dict[str, Any]:
    flags = {
        "--hf-checkpoint": folder, "--prompt-data": prompts, "--input-key": "prompt", "--label-key": "answer", "--rm-type": "random",
        "--num-rollout": STEPS, "--rollout-batch-size": PROMPTS, "--n-samples-per-prompt": GROUP, "--rollout-max-response-len": TOKENS,
        "--rollout-max-context-len": 1024, "--lr": 1e-6, "--device": "cuda", "--actor-num-gpus-per-node": 1, "--vllm-max-num-seqs": 512,
        "--max-tokens-per-gpu": 32768, "--vllm-compilation-config": GRAPHS, "--parity-threshold": 1e9,
    }  # fmt: skip
    words = [str(w) for pair in flags.items() for w in pair] + [
        "--bf16",
        "--use-dynamic-batch-size",
        "--calculate-per-token-loss",
    ]
    if ragged:
        words += ["--custom-generate-function-path", "ragged.generate"]
    place = str(ROOT / "benchmarks" / "gpu")
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, [place, os.environ.get("PYTHONPATH")]))}
    ran = run_training(f"schedule-{name}-{'ragged' if ragged else 'even'}", [*words, *extra], 110, environment)
    steps = ran["steps"][2:]
    return {
        "exit_code": ran["exit_code"], "error": ran["error"], "wall_s": ran["wall_s"],
        "step_s": [round(s["perf/step_time"], 3) for s in ran["steps"]], "median_step_s": median([s["perf/step_time"] for s in steps]),
        "rollout_s": median([s["perf/rollout_time"] for s in steps]), "train_s": median([s["perf/actor_train_wall_time"] for s in steps]),
        "update_s": median([s["perf/update_weights_time"] for s in steps]),
        "staleness": [s.get("rollout/staleness_mean", s.get("staleness/mean")) for s in ran["steps"]],
    }  # fmt: skip


def part() -> dict[str, Any]:
    options = argparse.ArgumentParser()
    options.add_argument("--ragged", action="store_true")
    ragged = options.parse_args().ragged
    folder, prompts = model_folder("0.6b"), prompt_file()
    result: dict[str, Any] = {"ragged": ragged}
    for name, extra in SCHEDULES.items():
        attempt(
            result,
            name,
            lambda name=name, extra=extra: measure(folder, prompts, name, ["--rollout-num-gpus", "1", *extra], ragged),
        )
    plain = result["synchronous"]
    if "median_step_s" in plain and plain["rollout_s"] == plain["rollout_s"]:
        share = plain["rollout_s"] / plain["median_step_s"]
        bound = 1 / max(share, 1 - share)
        result["generation_share"], result["bound"] = round(share, 3), round(bound, 3)
        for name in ("fully-async", "in-flight"):
            if "median_step_s" in result[name]:
                gain = plain["median_step_s"] / result[name]["median_step_s"]
                result[name]["gain"], result[name]["of_bound"] = round(gain, 3), round(gain / bound, 3)
    return result


report(part)
