"""The toy of 57 million parameters learns on one GPU through train.py, trainer and engine taking turns; parity at every step."""

from __future__ import annotations

import argparse
import time
from typing import Any

from common import GRAPHS, median, report, run_training, toy_flags

SPLIT = (
    "perf/rollout_time",
    "perf/actor_train_wall_time",
    "perf/update_weights_time",
    "perf/onload_time",
    "perf/step_time",
)


def part() -> dict[str, Any]:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=40)
    options.add_argument(
        "--resident", action="store_true", help="both stay on the device, as in the peer; no evaluation"
    )
    given = options.parse_args()
    began = time.time()
    flags = [*toy_flags(given.steps), "--vllm-compilation-config", GRAPHS]
    if given.resident:
        flags += ["--no-offload-train", "--no-offload-rollout", "--skip-eval-before-train", "--eval-interval", "100"]
    warmed = time.time()
    ran = run_training("learn-resident" if given.resident else "learn", flags, timeout=200)
    steps = ran.pop("steps")
    gaps = [s.get("train/train_rollout_logprob_abs_diff") for s in steps]
    known = [gap for gap in gaps if gap is not None]
    return {
        "warmup_s": round(warmed - began, 1), "exit_code": ran["exit_code"], "error": ran["error"], "wall_s": ran["wall_s"], "steps": len(steps),
        "reward": [round(s.get("rollout/raw_reward", s.get("rollout/reward", s.get("train/raw_reward", -1))), 4) for s in steps],
        "evals": [{k: v for k, v in e.items() if k.startswith("eval/") and isinstance(v, float)} for e in ran["evals"]],
        "parity_mean": {"first": gaps[0] if gaps else None, "median": median(known), "max": max(known, default=None), "all": [round(g, 5) for g in known]},
        "split_s": {name: round(median([s[name] for s in steps[1:] if name in s]), 4) for name in SPLIT},
        "tokens_per_s": median([s["perf/rollout_tokens_per_sec"] for s in steps if "perf/rollout_tokens_per_sec" in s]),
        "last_step": steps[-1] if steps else None,
    }  # fmt: skip


report(part)
