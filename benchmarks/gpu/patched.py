"""The patch stack on the installed CUDA vLLM: applied by `vime-sync`, then what it gives, used by runs of train.py on the GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common import ROOT, WORK, attempt, median, report, run_training, toy_flags

#: Of engines that share their device: a fixed cache, no graphs.
SMALL = ["--vllm-gpu-memory-utilization", "0.05", "--vllm-kv-cache-memory-bytes", str(2 << 30), "--vllm-enforce-eager"]


def apply() -> dict[str, Any]:
    import vllm

    command = [
        sys.executable,
        "-m",
        "synctool",
        "patch",
        "apply",
        "--site-packages",
        str(Path(vllm.__file__).parents[1]),
        "--json",
    ]
    if source := os.environ.get("VIME_PIN_SOURCE"):
        command += ["--source", source]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150)
    if done.returncode not in (0, 4):
        raise RuntimeError((done.stderr or done.stdout)[-500:])
    return {
        "exit_code": done.returncode,
        "output": json.loads(done.stdout).get("data", {}).get("digest") if done.stdout else None,
    }


def stack() -> Any:
    from vime.engine.patch_stack import installed_stack

    found = installed_stack()
    return None if found is None else {"digest": found.digest, "patches": list(found.patches)}


def centering() -> dict[str, Any]:
    """Score centering over complete nuclei: the support and its log-probabilities come from the engine's patch."""
    extra = ["--rollout-top-p", "0.9", "--use-score-centering", "--skip-eval-before-train", *SMALL]
    ran = run_training("centering", [*toy_flags(4), *extra], 200)
    steps = ran["steps"]
    return {
        "exit_code": ran["exit_code"], "error": ran["error"], "steps": len(steps),
        "parity_mean": [s.get("train/train_rollout_logprob_abs_diff") for s in steps],
        "centering": {k: [s.get(k) for s in steps] for k in sorted(steps[-1]) if k.startswith("train/sc_")} if steps else {},
        "step_s": median([s["perf/step_time"] for s in steps[1:]]),
    }  # fmt: skip


def routing(folder: Path, replayed: bool) -> dict[str, Any]:
    """A tiny mixture of experts: parity with the engine's choices of experts replayed in the trainer (R3), and with its own."""
    prompts = WORK / "toy" / "large-seed0" / "train.jsonl"
    flags = {
        "--hf-checkpoint": folder, "--prompt-data": prompts, "--input-key": "prompt", "--label-key": "answer", "--rm-type": "reverse_word",
        "--num-rollout": 3, "--rollout-batch-size": 16, "--n-samples-per-prompt": 4, "--rollout-max-response-len": 16, "--lr": 1e-4,
        "--device": "cuda", "--actor-num-gpus-per-node": 1, "--max-tokens-per-gpu": 8192,
    }  # fmt: skip
    words = [str(w) for pair in flags.items() for w in pair] + [
        "--colocate",
        "--bf16",
        "--use-dynamic-batch-size",
        "--calculate-per-token-loss",
        *SMALL,
    ]
    ran = run_training(
        f"moe-{'replayed' if replayed else 'plain'}", [*words, *["--use-rollout-routing-replay"] * replayed], 200
    )
    steps = ran["steps"]
    return {
        "exit_code": ran["exit_code"], "error": ran["error"],
        "parity_mean": [s.get("train/train_rollout_logprob_abs_diff") for s in steps],
        "parity_max": [s.get("train/train_rollout_logprob_abs_diff_max") for s in steps],
    }  # fmt: skip


def moe_folder() -> Path:
    """A Qwen3-MoE of 16 experts, 4 a token, with the toy's tokenizer and random weights."""
    import shutil

    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    folder = WORK / "tiny-moe"
    toy = WORK / "toy" / "large-seed0" / "start"
    config = Qwen3MoeConfig(
        vocab_size=json.loads((toy / "config.json").read_text())["vocab_size"], hidden_size=256, intermediate_size=512, moe_intermediate_size=128,
        num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, head_dim=64, num_experts=16, num_experts_per_tok=4, norm_topk_prob=True,
        max_position_embeddings=64, tie_word_embeddings=False, eos_token_id=1, pad_token_id=0, bos_token_id=2, decoder_sparse_step=1, mlp_only_layers=[],
    )  # fmt: skip
    torch.manual_seed(0)
    network = Qwen3MoeForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        for _name, p in network.named_parameters():
            if p.dim() > 1:
                p.mul_(3.0)
    network.save_pretrained(folder)
    for file in toy.glob("tokenizer*"):
        shutil.copy(file, folder)
    return folder


def part() -> dict[str, Any]:
    result: dict[str, Any] = {}
    attempt(result, "apply", apply)
    attempt(result, "stack", stack)
    folder = moe_folder()
    with ThreadPoolExecutor(3) as pool:  # small models that fit beside each other, and nothing is timed
        running = {
            "score_centering": pool.submit(centering),
            "routing_replay": pool.submit(routing, folder, True),
            "routing_not_replayed": pool.submit(routing, folder, False),
        }
        for name, one in running.items():
            attempt(result, name, one.result)
    return result


if __name__ == "__main__":
    report(part)
