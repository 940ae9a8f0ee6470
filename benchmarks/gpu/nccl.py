"""Weights to an engine on another GPU by NCCL: how fast, how long generation stands still, with and without prefetch, and a killed engine."""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from common import WORK, attempt, model_folder, open_trainer, parameters, report, server
from weights import Updates, answers, gap, pauses, perturb

from benchmarks.marked import tell, told


def killed(trainer: Any, updates: Updates, control: Any) -> dict[str, Any]:
    """SIGKILL of the engine while it receives: the sender must notice and its memory must come back."""
    import os as system
    import signal
    import threading

    import torch

    threading.Timer(0.02, lambda: system.killpg(control.process.pid, signal.SIGKILL)).start()
    began = time.perf_counter()
    try:
        updates.push()
        outcome = "the update was over before the kill"
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"[:200]
    return {
        "noticed_s": round(time.perf_counter() - began, 2),
        "outcome": outcome,
        "allocated_gib": round(torch.cuda.memory_allocated() / 2**30, 2),
    }


def link(own: str, other: str) -> dict[str, Any]:
    """The medium alone, in two processes."""
    import subprocess
    import sys
    from pathlib import Path

    place = WORK / "link.json"
    place.unlink(missing_ok=True)
    WORK.mkdir(parents=True, exist_ok=True)
    script = str(Path(__file__).with_name("nccl_link.py"))
    sides = [
        subprocess.Popen(
            [sys.executable, script, role, str(place)],
            env=os.environ | {"CUDA_VISIBLE_DEVICES": gpu, "NCCL_DEBUG": "WARN"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for role, gpu in (("send", own), ("receive", other))
    ]
    try:
        texts = [side.communicate(timeout=50)[0] for side in sides]
    finally:
        for side in sides:
            side.kill()
    found = [one for text in texts for one in told(text)]
    if any("error" in one for one in found) or len(found) < 2:
        raise RuntimeError(" | ".join(text[-400:] for text in texts))
    return {"send": found[0], "receive": found[1]}


def part() -> dict[str, Any]:
    options = argparse.ArgumentParser()
    options.add_argument("shape")
    given = options.parse_args()
    own, other = os.environ["CUDA_VISIBLE_DEVICES"].split(",")[:2]
    os.environ["CUDA_VISIBLE_DEVICES"] = own
    folder = model_folder(given.shape)
    result: dict[str, Any] = {"shape": given.shape, "parameters": parameters(given.shape)}
    graphs = '{"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}'
    flags = {
        "vllm_max_num_seqs": 64,
        "vllm_gpu_memory_utilization": 0.35,
        "rollout_max_context_len": 2048,
        "rollout_max_response_len": 1024,
        "vllm_compilation_config": graphs,
        "update_weight_transport": "nccl",
        "distributed_timeout_minutes": 1,
    }
    with ThreadPoolExecutor(1) as beside:
        opening = beside.submit(
            open_trainer, folder, update_weight_transport="nccl", colocate=False, distributed_timeout_minutes=1
        )
        with server(folder, gpu=other, colocate=False, **flags) as control:
            measure(result, folder, opening.result(), control)
    attempt(result, "link", lambda: link(own, other))
    return result


def measure(result: dict[str, Any], folder: Any, trainer: Any, control: Any) -> None:
    updates = Updates(trainer, control)
    attempt(result, "first_update", lambda: updates.push())
    attempt(result, "second_update", lambda: updates.push())
    perturb(trainer)
    attempt(result, "update_of_other_weights", lambda: updates.push())
    attempt(result, "parity_after_change", lambda: gap(trainer, answers(control.url)))
    attempt(result, "streamed", lambda: pauses(updates, folder))
    tell(result)  # what is known when time ends counts
    trainer.args.update_weight_prefetch = True
    attempt(result, "prefetched", lambda: pauses(updates, folder))
    perturb(trainer)
    attempt(result, "prefetched_other_weights", lambda: updates.push())
    attempt(result, "parity_after_prefetch", lambda: gap(trainer, answers(control.url)))
    trainer.args.update_weight_prefetch = False
    tell(result)
    attempt(result, "killed", lambda: killed(trainer, updates, control))


if __name__ == "__main__":
    report(part)
