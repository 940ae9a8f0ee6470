"""The peer: TRL's GRPOTrainer with the same vLLM in its process, on a checkpoint and prompts that both get. Prints one JSON line."""

from __future__ import annotations

import argparse
import itertools
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
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29611")
for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
    os.environ.setdefault(name, value)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True, help="prompts of a step")
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--updates", type=int, default=1)
    parser.add_argument("--micro", type=int, default=0, help="samples of a micro-batch; 0: all of an update")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--graphs", default="{}", help="vLLM's compilation settings, JSON")
    args = parser.parse_args()
    started = time.time()

    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer
    from trl.generation import vllm_generation

    whole = vllm_generation.LLM
    # The engine settings of the other side; TRL has no option for them.
    vllm_generation.LLM = lambda **given: whole(
        **given, compilation_config=json.loads(args.graphs), enable_prefix_caching=True
    )
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    tokenizer.padding_side = "left"
    rows = [json.loads(line) for line in Path(args.prompts).read_text().splitlines()]
    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            torch.cuda.synchronize()
            ends.append(time.time())

    def graded(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        return [reverse_word(text.split("<eos>")[0], word, {}) for text, word in zip(completions, answer, strict=True)]

    an_update = args.batch * args.group // args.updates
    micro = args.micro or an_update
    config = GRPOConfig(
        output_dir=str(Path(args.model).parent / "trl-output"),
        bf16=True,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=an_update // micro,
        steps_per_generation=args.updates * (an_update // micro),
        num_generations=args.group,
        max_completion_length=args.tokens,
        learning_rate=args.lr,
        warmup_steps=20,
        lr_scheduler_type="linear",
        max_steps=args.updates * args.steps,
        adam_beta1=0.9,
        adam_beta2=0.95,
        weight_decay=0.0,
        epsilon=0.2,
        beta=0.0,
        temperature=1.0,
        loss_type="dapo",
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_vllm=True,
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=0.3,
        vllm_max_model_length=2048 if args.tokens > 100 else 64,
    )
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=graded,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[Clock()],
    )
    begun = time.time()
    trainer.train()
    logs = [one for one in trainer.state.log_history if "reward" in one]
    ends = ends[args.updates - 1 :: args.updates]
    steps = [b - a for a, b in itertools.pairwise(ends)]
    tell({
        "start_s": begun - started, "step_s": steps, "rewards": [one["reward"] for one in logs],
        "lengths": [one.get("completions/mean_length") for one in logs], "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
    })  # fmt: skip


if __name__ == "__main__":
    main()
