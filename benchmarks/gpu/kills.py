"""SIGKILL of the engine, and of the trainer, in the middle of an update of the weights by NCCL: noticed, recovered, and every sample trained once.

Two runs of train.py with a durable queue, one a victim; see strike.py for when they are struck.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from common import GRAPHS, ROOT, WORK, attempt, metrics_of, report, toy_flags
from strike import MARKS, PLAN

STEPS = 7
#: Step after whose training the victim is killed.
STRIKES = {"engine": {"2": "engine"}, "trainer": {"2": "trainer"}}


def struck(victim: str, base: list[str]) -> dict[str, Any]:
    from vime.durable.audit import audit
    from vime.observe.ledger import Ledger

    name = f"kill-{victim}"
    directory, marks = WORK / "runs" / name, WORK / "strikes" / victim
    words = {
        "--save": directory, "--load": directory, "--save-interval": 2, "--run-dir": directory, "--run-id": name,
        "--rollout-data-transport": "straw", "--rollout-num-gpus": 1, "--update-weight-buffer-size": 1 << 20,
        "--vllm-gpu-memory-utilization": 0.05, "--vllm-kv-cache-memory-bytes": 2 << 30, "--vllm-compilation-config": GRAPHS,
        "--custom-megatron-before-train-step-hook-path": "strike.before_step", "--distributed-timeout-minutes": 1, "--vllm-start-timeout": 200,
    }  # fmt: skip
    flags = [word for word in base if word != "--colocate"]
    flags += [*(str(word) for pair in words.items() for word in pair), "--use-fault-tolerance"]
    place = str(ROOT / "benchmarks" / "gpu")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, [place, os.environ.get("PYTHONPATH")])),
        PLAN: json.dumps(STRIKES[victim]),
        MARKS: str(marks),
    }
    log = WORK / "logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.time()
    with open(log, "w") as output:
        done = subprocess.run(
            [sys.executable, str(ROOT / "train.py"), *flags],
            cwd=WORK, env=environment, stdout=output, stderr=subprocess.STDOUT, timeout=420,
        )  # fmt: skip
    text = log.read_text(errors="replace")
    print(text[-3000:], flush=True)
    steps = metrics_of(directory)
    found: dict[str, Any] = {
        "exit_code": done.returncode,
        "wall_s": round(time.time() - began, 1),
        "struck_after_steps": sorted(int(one.name) + 1 for one in marks.iterdir()) if marks.exists() else [],
        "steps": [one["rollout_id"] for one in steps],
        "replaced_engines": [one.get("weights/replaced_engines") for one in steps],
        "parity_max": max((one.get("train/train_rollout_logprob_abs_diff", 0.0) for one in steps), default=None),
        "said": re.findall(
            r"^.*(?:did not take version|died|going on at|is replaced).*$", text.replace(str(WORK), ""), re.MULTILINE
        )[:8],
    }
    # From the strike to the end of the next step that was trained.
    ends = [one["time"] for one in steps]
    times = [mark.stat().st_mtime for mark in sorted(marks.iterdir())] if marks.exists() else []
    found["seconds_to_a_step"] = [
        round(min((end for end in ends if end > at), default=float("nan")) - at, 1) for at in times
    ]
    account = Ledger(directory, STEPS).account()
    checked = audit(directory, deep=True)
    found["ledger"] = {"prompts": account.prompts, "samples": account.samples, "most": account.most}
    found["audit"] = {"findings": list(checked.findings), "trained_steps": checked.trained_steps}
    return found


def part() -> dict[str, Any]:
    options = argparse.ArgumentParser()
    options.add_argument("--victims", default=",".join(STRIKES))
    victims = options.parse_args().victims.split(",")
    base = toy_flags(STEPS, evaluate=False)
    result: dict[str, Any] = {"steps": STEPS}
    with ThreadPoolExecutor(len(victims)) as pool:
        running = {victim: pool.submit(struck, victim, base) for victim in victims}
        for victim, one in running.items():
            attempt(result, victim, one.result)
    return result


if __name__ == "__main__":
    report(part)
