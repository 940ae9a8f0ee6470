"""Weights to an engine on another GPU by NCCL: how fast, how long generation stands still, with and without prefetch, and a killed engine."""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

from common import attempt, model_folder, open_trainer, parameters, report, server
from weights import Updates, answers, gap, pauses, perturb


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
        "rollout_max_context_len": 2048,
        "rollout_max_response_len": 1024,
        "vllm_compilation_config": graphs,
        "update_weight_transport": "nccl",
    }
    trainer = None
    with server(folder, gpu=other, colocate=False, **flags) as control:
        trainer = open_trainer(folder, update_weight_transport="nccl", colocate=False)
        updates = Updates(trainer, control)
        attempt(result, "first_update", lambda: updates.push())
        attempt(result, "second_update", lambda: updates.push())
        perturb(trainer)
        attempt(result, "update_of_other_weights", lambda: updates.push())
        attempt(result, "parity_after_change", lambda: gap(trainer, answers(control.url)))
        attempt(result, "streamed", lambda: pauses(updates, folder))
        trainer.args.update_weight_prefetch = True
        attempt(result, "prefetched", lambda: pauses(updates, folder))
        perturb(trainer)
        attempt(result, "prefetched_other_weights", lambda: updates.push())
        attempt(result, "parity_after_prefetch", lambda: gap(trainer, answers(control.url)))
        trainer.args.update_weight_prefetch = False
        attempt(result, "killed", lambda: killed(trainer, updates, control))
    return result


report(part)
