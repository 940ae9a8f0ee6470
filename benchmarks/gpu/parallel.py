"""Two GPUs train as one: losses and gradient norms of tensor, data, context, sequence, pipeline and expert parallel 2 against one GPU, on the toy of
57 million parameters and on a mixture of experts of like size."""

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
    "pipeline": {"pipeline_model_parallel_size": 2},
    "experts_one": {},
    "experts_expert": {"expert_model_parallel_size": 2},
    "experts_sequence": {"tensor_model_parallel_size": 2, "sequence_parallel": True},
    "experts_pipeline": {"pipeline_model_parallel_size": 2},
}
EXPERTS = "experts_"
TOY, MIXTURE = WORK / "parallel-toy", WORK / "parallel-experts"
STEPS = 4


def rank_main(cut: str, rank: int, size: int, save: str | None, load: str | None) -> None:
    """One rank: a few steps on fixed samples; rank 0 prints losses and norms, and a digest of the weights, before and after.

    With `save` the steps are followed by a checkpoint and one step more; with `load` that one step is all.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["CUDA_VISIBLE_DEVICES"].split(",")[rank]
    from common import trainer_flags

    from vime.arguments import parse_args
    from vime.trainer.trainer import Trainer

    flags = trainer_flags(
        MIXTURE if cut.startswith(EXPERTS) else TOY,
        actor_num_gpus_per_node=size,
        rollout_batch_size=16,
        global_batch_size=32,
        max_tokens_per_gpu=1024,
        rollout_max_response_len=50,
        lr=1e-4,
        **CUTS[cut],
        **({"save": save, "ckpt_format": "torch_dist"} if save else {}),
        **({"load": load} if load else {}),
    )
    trainer = Trainer(parse_args(flags), rank=rank, world_size=size, device="cuda:0")
    start = trainer.init()
    samples = random_samples(32, 60, prompt=12, vocabulary=40)
    found: dict[str, Any] = {"start": start, "steps": []}

    def train(step: int) -> None:
        metrics = trainer.train(step, samples)
        found["steps"].append([metrics["train/loss"], metrics["train/grad_norm"], metrics.get("train/entropy_loss")])

    for step in range(0 if load is None else STEPS, STEPS):
        train(step)
    found["digest"] = digest(trainer)
    found["log_probs"] = [float(x.sum()) for x in trainer.log_probs(samples[:4])]
    if save:
        trainer.save(STEPS - 1, None)
    if save or load:
        train(STEPS)
    if rank == 0:
        print("RANK " + json.dumps(found), flush=True)
    trainer.close()


def digest(trainer: Any) -> str:
    """Of all weights as Hugging Face has them, whatever the layout; collective."""
    import hashlib

    import torch

    found = hashlib.sha256()
    named = {name: tensor.detach().cpu().contiguous() for name, tensor in trainer.iter_hf_weights()}
    for name in sorted(named):
        found.update(name.encode() + named[name].view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def run(cut: str, save: Path | None = None, load: Path | None = None, seconds: float = 150) -> dict[str, Any]:
    size = 1 if cut.removeprefix(EXPERTS) == "one" else 2
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NCCL_CUMEM_ENABLE": "0"}
    command = [sys.executable, str(Path(__file__).with_name("parallel.py")), "--cut", cut, "--size", str(size)]
    command += [word for name, path in (("--save", save), ("--load", load)) if path for word in (name, str(path))]
    ranks = [
        subprocess.Popen(
            [*command, "--rank", str(r)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for r in range(size)
    ]
    texts = []
    try:
        for rank in ranks:
            texts.append(rank.communicate(timeout=seconds)[0])
    finally:
        for rank in ranks:
            rank.kill()
    for line in texts[0].splitlines():
        if line.startswith("RANK "):
            return dict(json.loads(line.removeprefix("RANK ")))
    raise RuntimeError(texts[0][-300:])


def write_mixture() -> None:
    """Eight experts a layer, two of which a token takes; untied, so that its last stage has an output of its own."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3MoeConfig

    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=64, hidden_size=512, intermediate_size=1024, moe_intermediate_size=512, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=4, head_dim=64, num_experts=8, num_experts_per_tok=2, norm_topk_prob=True,
        max_position_embeddings=64, tie_word_embeddings=False, architectures=["Qwen3MoeForCausalLM"],
        pad_token_id=0, eos_token_id=1, bos_token_id=2,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(MIXTURE)


def write_models() -> None:
    from vime.toy.model import write_model
    from vime.toy.sizes import LARGE

    WORK.mkdir(parents=True, exist_ok=True)
    write_model(TOY, 0, LARGE)
    write_mixture()


def part() -> dict[str, Any]:
    import torch

    write_models()
    assert torch.cuda.device_count() >= 2
    result: dict[str, Any] = {}
    with ThreadPoolExecutor(len(CUTS)) as pool:  # small models: they fit beside each other, and nothing is timed
        running = {cut: pool.submit(run, cut) for cut in CUTS}
        for cut, one in running.items():
            attempt(result, cut, one.result)
    for cut, found in result.items():
        one = result[f"{EXPERTS}one" if cut.startswith(EXPERTS) else "one"].get("steps")
        if one and "steps" in found:
            found["largest_loss_gap"] = max(abs(a[0] - b[0]) for a, b in zip(found["steps"], one, strict=True))
            found["largest_norm_gap"] = max(abs(a[1] - b[1]) / b[1] for a, b in zip(found["steps"], one, strict=True))
    return result


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--cut")
    options.add_argument("--rank", type=int, default=0)
    options.add_argument("--size", type=int, default=1)
    options.add_argument("--save")
    options.add_argument("--load")
    given = options.parse_args()
    if given.cut:
        rank_main(given.cut, given.rank, given.size, given.save, given.load)
    else:
        report(part)
