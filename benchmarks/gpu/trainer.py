"""Trainer tokens a second and MFU in a real shape, and its memory: `Trainer.train` as a run calls it, with everything in it."""

from __future__ import annotations

import argparse
import time
from typing import Any

from common import (
    PEAK_FLOPS,
    attempt,
    median,
    model_folder,
    open_trainer,
    parameters,
    random_samples,
    report,
)

#: Tokens of a sequence, tokens of a micro-batch, tokens of logits at once (-1: all), recomputed layers.
VARIANTS = {
    "0.6b": [
        (2048, 8192, -1, 0),
        (2048, 16384, -1, 0),
        (2048, 32768, -1, 0),
        (2048, 32768, 4096, 0),
        (4096, 32768, -1, 0),
    ],
    "4b": [(4096, 8192, -1, 0), (4096, 8192, 4096, 0), (2048, 8192, -1, 0), (4096, 16384, -1, 36)],
}
STEPS = 3


def measure(shape: str, variant: tuple[int, int, int, int], tokens_a_step: int) -> dict[str, Any]:
    import torch

    from vime.trainer.flops import training_flops

    length, micro, chunk, recomputed = variant
    args = TRAINER.args
    args.max_tokens_per_gpu = args.log_probs_max_tokens_per_gpu = micro
    args.log_probs_chunk_size = chunk
    config = TRAINER.model.decoder.config
    config.recompute_granularity = "full" if recomputed else None
    config.recompute_method, config.recompute_num_layers = ("uniform", 1) if recomputed else (None, None)
    count = max(tokens_a_step, micro) // length // 2 * 2
    args.global_batch_size, args.rollout_batch_size = count, count // 2
    samples = random_samples(count, length)
    batch = TRAINER.split(TRAINER.train_data(samples))[0]
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    times: list[float] = []
    metrics: dict[str, float] = {}
    for step in range(STEPS + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        metrics = TRAINER.train(step, batch)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    rate = count * length / median(times[1:])
    return {
        "sequence": length, "micro_batch": micro, "chunk": chunk, "recomputed_layers": recomputed, "tokens_a_step": count * length,
        "tokens_per_s": round(rate), "mfu": round(rate * training_flops(TRAINER.shape, [length]) / length / PEAK_FLOPS, 4),
        "step_s": [round(t, 4) for t in times], "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        "grad_norm": metrics.get("train/grad_norm"),
    }  # fmt: skip


def profile(shape: str) -> list[list[Any]]:
    """Where device time goes: kernels by their share of one step."""
    import torch
    from torch.profiler import ProfilerActivity

    samples = random_samples(TRAINER.args.global_batch_size, VARIANTS[shape][0][0])
    batch = TRAINER.split(TRAINER.train_data(samples))[0]
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        began = time.perf_counter()
        TRAINER.train(90, batch)
        torch.cuda.synchronize()
        wall = time.perf_counter() - began
    rows = [
        (row.key[:60], row.self_device_time_total / 1e3, row.count)
        for row in found.key_averages()
        if row.self_device_time_total
    ]
    rows.sort(key=lambda row: -row[1])
    total = sum(row[1] for row in rows)
    return [
        ["wall_ms", round(wall * 1e3, 1), 1],
        ["device_ms", round(total, 1), 1],
        *([k, round(ms, 2), n] for k, ms, n in rows[:22]),
    ]


def part() -> dict[str, Any]:
    global TRAINER
    import torch

    options = argparse.ArgumentParser()
    options.add_argument("shape")
    options.add_argument("--tokens", type=int, default=65536)
    given = options.parse_args()
    shape = given.shape
    began = time.perf_counter()
    folder = model_folder(shape)
    made = time.perf_counter()
    TRAINER = open_trainer(folder, max_tokens_per_gpu=8192)
    result: dict[str, Any] = {
        "shape": shape, "parameters": parameters(shape), "make_model_s": round(made - began, 1),
        "init_s": round(time.perf_counter() - made, 1), "after_init_gib": round(torch.cuda.memory_allocated() / 2**30, 2), "variants": [],
    }  # fmt: skip
    for variant in VARIANTS[shape]:
        found: dict[str, Any] = {}
        attempt(found, str(variant), lambda variant=variant: measure(shape, variant, given.tokens))
        result["variants"].append(found[str(variant)])
        torch.cuda.empty_cache()
    attempt(result, "offload", offload)
    TRAINER.args.max_tokens_per_gpu = 8192 if shape == "4b" else 32768
    TRAINER.args.log_probs_chunk_size = -1
    TRAINER.model.decoder.config.recompute_granularity = None
    attempt(result, "profile", lambda: profile(shape))
    return result


def offload() -> dict[str, Any]:
    """To the host and back, twice: the first time pins the memory."""
    import torch

    before = {name: p.detach().float().sum().item() for name, p in list(TRAINER.model.named_parameters())[:4]}
    found = [TRAINER.offload(), TRAINER.onload(), TRAINER.offload()]
    left = torch.cuda.memory_allocated() / 2**30
    found.append(TRAINER.onload())
    same = all(before[n] == p.detach().float().sum().item() for n, p in list(TRAINER.model.named_parameters())[:4])
    return {"moves": found, "left_gib": round(left, 3), "same": same}


report(part)
