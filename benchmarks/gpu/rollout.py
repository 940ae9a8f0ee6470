"""Generated tokens a second through the whole runtime against vLLM alone, same prompts, flags and machine; and the split of a step."""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from common import GRAPHS, VOCABULARY, WORK, attempt, median, model_folder, report, run_training

from benchmarks.marked import told

PROMPTS, GROUP, PROMPT_TOKENS, TOKENS, ROUNDS = 32, 8, 64, 512, 4


def prompt_file() -> Path:
    path = WORK / "prompts.jsonl"
    if path.exists():
        return path
    rng = random.Random(0)
    staging = path.with_suffix(".tmp")
    with open(staging, "w") as file:
        for _ in range(PROMPTS * (ROUNDS + 2)):
            file.write(
                json.dumps(
                    {
                        "prompt": " ".join(f"t{rng.randrange(3, VOCABULARY)}" for _ in range(PROMPT_TOKENS)),
                        "answer": "x",
                    }
                )
                + "\n"
            )
    staging.replace(path)
    return path


def bare(folder: Path, prompts: Path) -> dict[str, Any]:
    command = [
        sys.executable,
        str(Path(__file__).with_name("bare_engine.py")),
        folder,
        prompts,
        GROUP,
        TOKENS,
        ROUNDS,
        PROMPTS,
        GRAPHS,
    ]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=200)
    for found in told(done.stdout):
        return found
    raise RuntimeError(done.stderr[-400:])


def ours(folder: Path, prompts: Path, shape: str) -> dict[str, Any]:
    flags = {
        "--hf-checkpoint": folder, "--prompt-data": prompts, "--input-key": "prompt", "--label-key": "answer", "--rm-type": "random",
        "--num-rollout": ROUNDS + 1, "--rollout-batch-size": PROMPTS, "--n-samples-per-prompt": GROUP, "--rollout-max-response-len": TOKENS,
        "--rollout-max-context-len": 2048, "--lr": 1e-6, "--device": "cuda", "--actor-num-gpus-per-node": 1, "--vllm-gpu-memory-utilization": 0.5,
        "--vllm-max-num-seqs": 256, "--max-tokens-per-gpu": 32768 if shape == "0.6b" else 8192, "--vllm-compilation-config": GRAPHS,
    }  # fmt: skip
    words = [str(w) for pair in flags.items() for w in pair]
    ran = run_training(
        f"rollout-{shape}",
        [*words, "--colocate", "--bf16", "--use-dynamic-batch-size", "--calculate-per-token-loss"],
        260,
    )
    steps = ran["steps"]
    names = (
        "perf/rollout_time",
        "perf/actor_train_wall_time",
        "perf/onload_time",
        "perf/update_weights_time",
        "perf/step_time",
        "perf/actor_train_tok_per_s",
    )
    return {
        "exit_code": ran["exit_code"], "error": ran["error"], "wall_s": ran["wall_s"],
        "tokens_per_s": [s["perf/rollout_tokens_per_sec"] for s in steps],
        "parity_mean": [s.get("train/train_rollout_logprob_abs_diff") for s in steps],
        "parity_max": [s.get("train/train_rollout_logprob_abs_diff_max") for s in steps],
        "split_s": {n: round(median([s[n] for s in steps[1:] if n in s]), 4) for n in names},
    }  # fmt: skip


def part() -> dict[str, Any]:
    options = argparse.ArgumentParser()
    options.add_argument("shape")
    options.add_argument("--only", choices=["ours", "bare"])
    given = options.parse_args()
    shape = given.shape
    WORK.mkdir(parents=True, exist_ok=True)
    folder, prompts = model_folder(shape), prompt_file()
    result: dict[str, Any] = {"shape": shape, "samples": PROMPTS * GROUP, "tokens": TOKENS}
    if given.only != "bare":
        attempt(result, "ours", lambda: ours(folder, prompts, shape))
    if given.only != "ours":
        attempt(result, "bare", lambda: bare(folder, prompts))
    if not given.only and "error" not in result["bare"] and result["ours"].get("tokens_per_s"):
        result["ratio"] = round(median(result["ours"]["tokens_per_s"][1:]) / median(result["bare"]["tokens_per_s"]), 4)
    return result


if __name__ == "__main__":
    report(part)
