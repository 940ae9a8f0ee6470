"""The toy's starting checkpoint: a short supervised run with the same trainer that reinforcement learning uses."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vime.toy.model import write_model
from vime.toy.sizes import SIZES, SMALL, Size
from vime.toy.words import VOCABULARY, answer, prompt, words

#: Stop when the model samples this share of answers exactly right: little, but enough for rewards to differ in a group.
TARGET = 0.1
MOST_STEPS = 400
_HELD_OUT = 128


def ensure_start(folder: Path, seed: int, say: Callable[[str], None] = print, size: Size = SMALL) -> Path:
    """The checkpoint in `folder`, made there when it is missing. It appears complete or not at all."""
    if (folder / "warmup.json").is_file():
        return folder
    staging = folder.with_name(f".{folder.name}.warm-{os.getpid()}")
    try:
        write_model(staging, seed, size)
        record = _train(staging, seed, say, size)
        (staging / "warmup.json").write_text(json.dumps(record, indent=2) + "\n")
        shutil.rmtree(folder, ignore_errors=True)
        staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return folder


def _train(folder: Path, seed: int, say: Callable[[str], None], size: Size) -> dict[str, Any]:
    from vime.arguments import parse_args
    from vime.trainer.trainer import Trainer

    args = parse_args(_flags(folder, seed, size))
    trainer = Trainer(args, device=args.device)
    started = time.perf_counter()
    trainer.init()
    stream = words(seed, size.letters)
    held_out = [
        _sample(i, word) for i, word in enumerate(itertools.islice(words(seed + 10_000, size.letters), _HELD_OUT))
    ]
    curve = []
    for step in range(MOST_STEPS):
        batch = [_sample(i, word) for i, word in enumerate(itertools.islice(stream, size.warmup_batch))]
        metrics = trainer.train(step, batch)
        if (step + 1) % size.check_every == 0:
            exact = sampled_exact(trainer.log_probs(held_out))
            curve.append({"step": step + 1, "loss": metrics["train/loss"], "sampled_exact": exact})
            if exact >= TARGET:
                break
    trainer.save_hf(folder)
    trainer.close()
    seconds = time.perf_counter() - started
    say(
        f"starting checkpoint: {step + 1} supervised steps in {seconds:.0f} s, "
        f"samples {curve[-1]['sampled_exact']:.0%} of the answers right"
    )
    return {"seed": seed, "steps": step + 1, "seconds": round(seconds, 1), "curve": curve}


def sampled_exact(log_probs: Sequence[Any]) -> float:
    """Expected share of exactly right samples at temperature 1: the mean probability of the whole right answer.

    No generation is needed for it. `log_probs`: per answer the log-probability of each of its tokens.
    """
    return sum(math.exp(float(values.sum())) for values in log_probs) / len(log_probs)


def _flags(folder: Path, seed: int, size: Size) -> list[str]:
    flags = {
        "--hf-checkpoint": folder,
        "--loss-type": "sft_loss",
        "--seed": seed,
        "--device": size.device,
        "--num-rollout": MOST_STEPS,
        "--rollout-batch-size": size.warmup_batch,
        "--micro-batch-size": size.warmup_batch,
        "--lr": size.warmup_rate,
        "--lr-warmup-iters": 20,
        "--lr-decay-style": "constant",
        "--adam-beta2": 0.95,
        "--weight-decay": 0.0,
        "--rollout-max-response-len": size.answer_tokens,
        "--prompt-data": folder / "config.json",  # unused: the words come from memory, but a run names its data
    }
    precision = ["--bf16"] if size.bf16 else []
    return [str(part) for pair in flags.items() for part in pair] + ["--calculate-per-token-loss", *precision]


def _sample(index: int, word: str) -> Any:
    from vime.sample import Sample, Status

    ids = {token: number for number, token in enumerate(VOCABULARY)}
    asked, wanted = [ids[c] for c in prompt(word)], [ids[c] for c in answer(word)] + [ids["<eos>"]]
    return Sample(
        index=index,
        group_index=index,
        rollout_id=index,
        tokens=asked + wanted,
        response_length=len(wanted),
        loss_mask=[1] * len(wanted),
        reward=0.0,
        status=Status.COMPLETED,
    )


def main(argv: Sequence[str]) -> None:
    """`python -m vime.toy.warmup FOLDER SEED SIZE`: in a process of its own, so that torch never loads in the driver."""
    from vime import environment

    environment.prepare()
    ensure_start(Path(argv[0]), int(argv[1]), size=SIZES[argv[2]])


if __name__ == "__main__":
    main(sys.argv[1:])
