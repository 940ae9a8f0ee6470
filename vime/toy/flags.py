"""The default run as flags: prompts, checkpoint and evaluation files are made in a work folder, then this is the command line."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

from vime.arguments.derive import cuda_is_visible
from vime.errors import MachineError
from vime.toy.sizes import SMALL, Size
from vime.toy.words import words, write_rows

STEPS = 40
_GROUP, _MINI_BATCHES = 8, 2
_TRAIN_ROWS = 16384
_EVAL_ROWS = 256
_WARMUP_SECONDS = 600


def work_folder() -> Path:
    """Where the toy is kept between runs: $VIME_TOY_DIR, else .cache/toy in the current folder."""
    return Path(os.environ.get("VIME_TOY_DIR") or Path(".cache") / "toy")


def default_flags(
    steps: int = STEPS, seed: int = 0, folder: Path | None = None, size: Size = SMALL, *, evaluate: bool = True
) -> list[str]:
    """Make what is missing and return the flags, with an evaluation every ten steps unless told otherwise. The starting checkpoint takes some ten
    seconds the first time.

    On a host with a GPU the run uses one, shared by trainer and engine.
    """
    folder = (folder or work_folder()) / f"{size.folder}{seed}"
    train = folder / "train.jsonl"
    if not train.exists():
        write_rows(train, itertools.islice(words(seed + 1, size.letters), _TRAIN_ROWS))
        write_rows(folder / "eval.jsonl", itertools.islice(words(seed + 20_000, size.letters), _EVAL_ROWS))
    start = folder / "start"
    if not (start / "warmup.json").exists():
        _make_start(start, seed, size)
    flags = {
        "--hf-checkpoint": start,
        "--prompt-data": train,
        "--input-key": "prompt",
        "--label-key": "answer",
        "--rm-type": "reverse_word",
        "--num-rollout": steps,
        "--seed": 1234 + seed,
        "--rollout-seed": 42 + seed,
        "--rollout-batch-size": size.prompts,
        "--n-samples-per-prompt": _GROUP,
        "--num-steps-per-rollout": _MINI_BATCHES,
        "--rollout-max-response-len": size.answer_tokens,
        "--max-tokens-per-gpu": size.micro_batch,
        # A fresh Adam without warm-up destroys the policy: its first steps move every weight by the whole rate.
        "--lr": size.rate,
        "--lr-warmup-iters": 10,
        "--lr-decay-style": "linear",
        "--adam-beta1": 0.9,
        "--adam-beta2": 0.95,
        "--weight-decay": 0.0,
        "--eps-clip": 0.2,
        "--vllm-max-num-seqs": 256,
    }
    if evaluate:
        flags |= {"--eval-config": _eval_config(folder, size), "--eval-interval": 10}
    return [str(part) for pair in flags.items() for part in pair] + [
        "--use-dynamic-batch-size",
        "--calculate-per-token-loss",
        *_devices(),
    ]


def _devices() -> list[str]:
    """One GPU for both where there is one: the engine takes a share and sleeps while the trainer works."""
    if not cuda_is_visible():
        return []
    flags = {"--device": "cuda", "--actor-num-gpus-per-node": 1, "--vllm-gpu-memory-utilization": 0.5}
    return [str(part) for pair in flags.items() for part in pair] + ["--bf16", "--colocate"]


def _eval_config(folder: Path, size: Size) -> Path:
    """Greedy and sampled answers to the same words, scored exactly. They tell different stories, so both are reported."""
    common = {
        "path": str((folder / "eval.jsonl").resolve()),
        "input_key": "prompt",
        "label_key": "answer",
        "custom_rm_path": "vime.toy.reward.exact",
        "max_response_len": size.answer_tokens,
    }
    datasets = [{"name": "greedy", "temperature": 0.0} | common, {"name": "sampled", "temperature": 1.0} | common]
    path = folder / "eval.yaml"
    path.write_text(json.dumps({"eval": {"datasets": datasets}}, indent=2) + "\n")  # JSON is YAML
    return path


def _make_start(folder: Path, seed: int, size: Size) -> None:
    print("making the toy's starting checkpoint: a few dozen supervised steps", flush=True)
    command = [sys.executable, "-m", "vime.toy.warmup", str(folder), str(seed), size.name]
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, timeout=_WARMUP_SECONDS, stderr=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise MachineError(
            f"the starting checkpoint could not be made (exit code {done.returncode}): {done.stderr.strip().splitlines()[-1:]}",
            hint="`vime doctor` checks this machine",
        )
