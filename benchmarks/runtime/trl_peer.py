"""The peer: TRL's GRPOTrainer on the toy's checkpoint and prompts. Runs in a virtual environment of its own; prints one JSON line.

Same model, prompts, group size, answer length, reward, learning rate, warm-up, decay, clip and number of updates a step as the
toy's flags. TRL generates with Hugging Face; it has no engine on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.marked import tell  # noqa: E402
from vime.rollout.rewards.rules import reverse_word  # noqa: E402

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    started = time.time()

    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(args.threads)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    rows = [json.loads(line) for line in Path(args.prompts).read_text().splitlines()]
    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(time.time())

    def graded(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        return [reverse_word(text.split("<eos>")[0], word, {}) for text, word in zip(completions, answer, strict=True)]

    config = GRPOConfig(
        output_dir=str(Path(args.model).parent / "trl-output"),
        seed=args.seed,
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=128,
        # Two updates on each batch of 256 samples, as the toy makes.
        steps_per_generation=2,
        num_generations=8,
        max_completion_length=8,
        learning_rate=3e-4,
        warmup_steps=20,
        lr_scheduler_type="linear",
        max_steps=2 * args.steps,
        adam_beta1=0.9,
        adam_beta2=0.95,
        weight_decay=0.0,
        epsilon=0.2,
        beta=0.0,
        temperature=1.0,
        loss_type="dapo",  # mean over the tokens of a step
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32),
        reward_funcs=graded,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[Clock()],
    )
    begun, cpu_begun = time.time(), time.process_time()
    trainer.train()
    logs = [one for one in trainer.state.log_history if "reward" in one]
    # A batch of samples lasts two updates; only the first of them logs its reward.
    rewards = [one["reward"] for one in logs]
    lengths = [one["completions/mean_length"] for one in logs]
    tell(
        {
            "start_s": begun - started,
            "ends": [end - begun for end in ends[1::2]],
            "rewards": rewards,
            "tokens": [length * 256 for length in lengths],
            "cpu_s": time.process_time() - cpu_begun,
        }
    )


if __name__ == "__main__":
    main()
