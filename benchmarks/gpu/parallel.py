"""Two GPUs train as one: losses and gradient norms of tensor, data, context and sequence parallel 2 against one GPU, on the toy of 57 million parameters."""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common import WORK, attempt, random_samples, report

CUTS: dict[str, dict[str, Any]] = {
    "one": {},
    "tensor": {"tensor_model_parallel_size": 2},
    "data": {},
    "data_sharded_optimizer": {"use_distributed_optimizer": True},
    "context": {"context_parallel_size": 2},
    "sequence": {"tensor_model_parallel_size": 2, "sequence_parallel": True},
}
STEPS = 4


def rank_main(cut: str, rank: int, size: int) -> None:
    """One rank: a few steps on fixed samples; rank 0 prints losses and norms."""
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["CUDA_VISIBLE_DEVICES"].split(",")[rank]
    from common import trainer_flags

    from vime.arguments import parse_args
    from vime.trainer.trainer import Trainer

    folder = WORK / "parallel-toy"
    flags = trainer_flags(
        folder,
        actor_num_gpus_per_node=size,
        rollout_batch_size=16,
        global_batch_size=32,
        max_tokens_per_gpu=1024,
        rollout_max_response_len=50,
        lr=1e-4,
        **CUTS[cut],
    )
    trainer = Trainer(parse_args(flags), rank=rank, world_size=size, device="cuda:0")
    trainer.init()
    samples = random_samples(32, 60, prompt=12, vocabulary=40)
    found = []
    for step in range(STEPS):
        metrics = trainer.train(step, samples)
        found.append([metrics["train/loss"], metrics["train/grad_norm"], metrics.get("train/entropy_loss")])
    values = [float(x.sum()) for x in trainer.log_probs(samples[:4])]
    if rank == 0:
        print("RANK " + json.dumps({"steps": found, "log_probs": values}), flush=True)
    trainer.close()


def run(cut: str) -> dict[str, Any]:
    size = 1 if cut == "one" else 2
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NCCL_CUMEM_ENABLE": "0"}
    command = [sys.executable, str(Path(__file__)), "--cut", cut, "--size", str(size)]
    ranks = [
        subprocess.Popen(
            [*command, "--rank", str(r)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for r in range(size)
    ]
    texts = []
    try:
        for rank in ranks:
            texts.append(rank.communicate(timeout=90)[0])
    finally:
        for rank in ranks:
            rank.kill()
    for line in texts[0].splitlines():
        if line.startswith("RANK "):
            return dict(json.loads(line.removeprefix("RANK ")))
    raise RuntimeError(texts[0][-300:])


def part() -> dict[str, Any]:
    import torch

    from vime.toy.model import write_model
    from vime.toy.sizes import LARGE

    WORK.mkdir(parents=True, exist_ok=True)
    write_model(WORK / "parallel-toy", 0, LARGE)
    assert torch.cuda.device_count() >= 2
    result: dict[str, Any] = {}
    with ThreadPoolExecutor(len(CUTS)) as pool:  # small models: they fit beside each other, and nothing is timed
        running = {cut: pool.submit(run, cut) for cut in CUTS}
        for cut, one in running.items():
            attempt(result, cut, one.result)
    one = result["one"].get("steps")
    for found in result.values():
        if one and "steps" in found:
            found["largest_loss_gap"] = max(abs(a[0] - b[0]) for a, b in zip(found["steps"], one, strict=True))
            found["largest_norm_gap"] = max(abs(a[1] - b[1]) / b[1] for a, b in zip(found["steps"], one, strict=True))
    return result


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--cut")
    options.add_argument("--rank", type=int, default=0)
    options.add_argument("--size", type=int, default=1)
    given = options.parse_args()
    if given.cut:
        rank_main(given.cut, given.rank, given.size)
    else:
        report(part)
