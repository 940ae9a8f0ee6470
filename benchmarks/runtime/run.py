"""The runtime against TRL and against the bare engine, on the toy: interleaved, medians, ratios; results as JSON.

    python benchmarks/runtime/run.py [--repeats 5] [--steps 60] [--out benchmarks/results/runtime.json]

B1, time to reward: seconds from the start of the first step until the mean training reward of five steps reaches the mark, and tokens
trained a second, against TRL's GRPOTrainer. B2: generated tokens a second through the whole runtime against `LLM.generate`.
Start-up is reported apart, and where our steps' time went. Beside other work the seconds say little and the ratios something: the
load while it ran is in the result. All sides wait passively and have the same threads; TRL gets a virtual environment of its own, made here.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.marked import told  # noqa: E402
from vime import environment  # noqa: E402
from vime.observe.metrics import read_metrics  # noqa: E402
from vime.toy.flags import default_flags  # noqa: E402

CACHE = ROOT / ".cache" / "bench"
MARK = 0.55
WINDOW = 5


def run(command: list[str], threads: int, **more: str) -> str:
    """Standard output of `command`, with the same thread settings for every side. Raises when it fails."""
    variables = (
        os.environ | environment.WAIT_POLICY | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    )
    done = subprocess.run(command, env=variables | more, cwd=CACHE, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def trl_python(version: str) -> Path:
    """An interpreter with TRL, made on first use. torch and its like come from this environment, so both sides run the same build."""
    folder = CACHE / f"trl-{version}"
    python = folder / "bin" / "python"
    if not (folder / ".ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", str(folder)], check=True)
        site = next((Path(sys.prefix) / "lib").glob("python3.*/site-packages"))
        own = next((folder / "lib").glob("python3.*/site-packages"))
        (own / "shared.pth").write_text(f"{site}\n")
        subprocess.run(
            [str(python), "-m", "pip", "install", "-q", "--no-deps", f"trl=={version}", "accelerate"], check=True
        )
        subprocess.run([str(python), "-m", "pip", "install", "-q", "datasets"], check=True)
        (folder / ".ready").touch()
    return python


def ours(steps: int, seed: int, threads: int, tag: str) -> dict[str, Any]:
    folder = CACHE / "runs" / f"{tag}-{int(time.time())}"
    flags = [*default_flags(steps, seed, CACHE / "toy", evaluate=False), "--run-dir", str(folder)]
    begun = time.time()
    output = run([sys.executable, str(ROOT / "train.py"), *flags], threads)
    records = read_metrics(folder, "step")
    up = float(re.search(r"up after (\d+) s", output)[1])  # type: ignore[index]
    first = records[0]["time"] - records[0]["perf/step_time"]
    return {
        "start_s": up,
        "ends": [one["time"] - first for one in records],
        "rewards": [one["rollout/raw_reward"] for one in records],
        "tokens": [one["rollout/response_lengths"] * one["rollout/samples"] for one in records],
        "rollout_tokens_per_s": [one["perf/rollout_tokens_per_sec"] for one in records],
        "split": split(records),
        "parity": max(one["train/train_rollout_logprob_abs_diff"] for one in records),
        "wall_s": time.time() - begun,
    }


def split(records: list[dict[str, Any]]) -> dict[str, float]:
    """Median seconds of the parts of a step, the first two steps left out; "rest" is what no part accounts for."""
    names = {
        "step": "perf/step_time",
        "generate": "perf/rollout_time",
        "train": "perf/actor_train_wall_time",
        "weights": "perf/update_weights_time",
    }
    found = {part: statistics.median(one[name] for one in records[2:]) for part, name in names.items()}
    found["rest"] = found["step"] - found["generate"] - found["train"] - found["weights"]
    return {part: round(seconds, 4) for part, seconds in found.items()}


def seconds_to_reward(side: dict[str, Any]) -> float | None:
    rewards = side["rewards"]
    for step in range(WINDOW, len(rewards) + 1):
        if statistics.fmean(rewards[step - WINDOW : step]) >= MARK:
            return float(side["ends"][step - 1])
    return None


def steady(side: dict[str, Any]) -> dict[str, Any]:
    steps = [b - a for a, b in zip(side["ends"], side["ends"][1:], strict=False)]
    return {
        "start_s": round(side["start_s"], 1),
        "seconds_per_step": round(statistics.median(steps), 3),
        "tokens_per_s": round(sum(side["tokens"][1:]) / sum(steps), 1),
        "seconds_to_reward": seconds_to_reward(side),
        "last_reward": round(statistics.fmean(side["rewards"][-WINDOW:]), 3),
    } | {name: side[name] for name in ("split", "parity") if name in side}


def median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if len(known) == len(values) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--threads", type=int, default=environment.cores())
    parser.add_argument("--trl", default="1.16.0", help="version of the peer")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "runtime.json")
    args = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    default_flags(args.steps, 0, CACHE / "toy")
    start, prompts = CACHE / "toy" / "seed0" / "start", CACHE / "toy" / "seed0" / "train.jsonl"
    trl = [str(trl_python(args.trl)), str(Path(__file__).with_name("trl_peer.py"))]
    trl += [
        "--model",
        str(start),
        "--prompts",
        str(prompts),
        "--steps",
        str(args.steps),
        "--threads",
        str(args.threads),
    ]
    bare = [sys.executable, str(Path(__file__).with_name("bare_engine.py"))]
    bare += ["--model", str(start), "--prompts", str(prompts), "--batches", str(args.steps)]
    engine = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCH_COMPILE_DISABLE": "1"}
    engine |= {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    mine, peer, alone, loads = [], [], [], []
    for repeat in range(args.repeats):
        mine.append(ours(args.steps, 0, args.threads, f"b1-{repeat}"))
        peer.append(told(run(trl, args.threads))[0])
        alone.append(told(run(bare, args.threads, **engine))[0])
        loads.append(round(os.getloadavg()[0], 2))
        print(f"repeat {repeat + 1}: ours {steady(mine[-1])}, TRL {steady(peer[-1])}", flush=True)
    rows = {"vime": [steady(one) for one in mine], "trl": [steady(one) for one in peer]}
    names = ("seconds_per_step", "tokens_per_s", "seconds_to_reward")
    middle = {side: {name: median([row[name] for row in found]) for name in names} for side, found in rows.items()}
    through = statistics.median(statistics.median(one["rollout_tokens_per_s"][2:]) for one in mine)
    direct = statistics.median(statistics.median(one["tokens_per_s"]) for one in alone)
    to_reward = middle["trl"]["seconds_to_reward"], middle["vime"]["seconds_to_reward"]
    report = {
        "machine": {
            "cores": environment.cores(),
            "python": platform.python_version(),
            "threads": args.threads,
            # Runnable processes of the whole machine after each repeat; about the number of threads when nothing else runs.
            "load": loads,
        },
        # Without this checkout's place: the command lines are for any clone.
        "commands": {
            name: [str(w).replace(f"{ROOT}/", "") for w in words] for name, words in (("trl", trl), ("bare", bare))
        },
        "reward_mark": MARK,
        "B1": {
            "runs": rows,
            "median": middle,
            "speed_to_reward_vs_trl": round(to_reward[0] / to_reward[1], 3) if all(to_reward) else None,  # type: ignore[operator]
            "tokens_per_s_vs_trl": round(middle["vime"]["tokens_per_s"] / middle["trl"]["tokens_per_s"], 3),  # type: ignore[operator]
        },
        "B2": {
            "through_runtime": round(through, 1),
            "bare_engine": round(direct, 1),
            "ratio": round(through / direct, 3),
        },
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=2) + "\n")
    ratio = report["B1"]["speed_to_reward_vs_trl"]  # type: ignore[index]
    print(json.dumps({"B1": middle, "vs_trl": ratio, "B2": report["B2"]}, indent=2))


if __name__ == "__main__":
    main()
