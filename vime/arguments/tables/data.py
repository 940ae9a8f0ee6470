"""Prompts, batches and evaluation data."""

from __future__ import annotations

from vime.arguments.option import choice, integer, mapping, number, switch, text
from vime.arguments.tables.section import Section

DATA = Section(
    "Data",
    (
        text("--prompt-data", None, "jsonl or parquet file; FILE@[a:b] takes a slice of its rows"),
        text("--input-key", "input", "column of the prompt: a text or a list of messages"),
        text("--label-key", None, "column of the reference answer"),
        text("--metadata-key", "metadata", "column of a mapping that follows the sample"),
        text("--tool-key", "tools", "column of tool definitions for the chat template"),
        mapping("--multimodal-keys", None, "column of each kind of media, as JSON"),
        switch("--apply-chat-template", "render the prompt through the tokenizer's chat template"),
        mapping("--apply-chat-template-kwargs", {}, "arguments of the chat template, as JSON"),
        switch("--rollout-shuffle", "new order of the prompts in each epoch"),
        integer("--rollout-seed", 42, "seed of prompt order and of sampling"),
        text(
            "--data-source-path", "vime.data.source.RolloutDataSourceWithBuffer", "class(args) that deals the prompts"
        ),
        switch(
            "--accept-new-data",
            "resume although the prompt file has changed since the checkpoint; the cursor starts anew",
        ),
        choice(
            "--loss-mask-type",
            "template",
            ("template", "qwen", "qwen3", "qwen3_5", "gemma4", "distill_qwen"),
            "how the trained tokens of a conversation are found; all are driven by the model's chat template",
        ),
        integer(
            "--data-pad-size-multiplier",
            128,
            "packed rows are padded to a multiple of this times the tensor parallel size",
        ),
    ),
)

BATCH = Section(
    "Batch",
    (
        integer("--rollout-batch-size", None, "prompts (groups) of one rollout step; required"),
        integer("--n-samples-per-prompt", 1, "answers to each prompt"),
        integer(
            "--global-batch-size",
            None,
            "samples of one optimizer step",
            default_text="batch x n / --num-steps-per-rollout",
        ),
        integer("--num-steps-per-rollout", None, "optimizer steps of one rollout step"),
        integer("--micro-batch-size", 1, "samples of one forward pass without dynamic batches"),
        switch("--use-dynamic-batch-size", "pack samples up to --max-tokens-per-gpu"),
        integer("--max-tokens-per-gpu", None, "tokens of one micro-batch on one device"),
        integer(
            "--log-probs-max-tokens-per-gpu",
            None,
            "the same for passes without gradients",
            default_text="--max-tokens-per-gpu",
        ),
        switch("--balance-data", "spread samples over ranks by their work"),
        switch("--balance-by-flops", "pack by floating-point work; a micro-batch may then exceed the token cap"),
    ),
)

EVAL = Section(
    "Evaluation",
    (
        integer("--eval-interval", None, "evaluate after every so many steps"),
        text("--eval-prompt-data", None, "pairs NAME PATH", many=True),
        text("--eval-config", None, "YAML with eval.defaults and eval.datasets"),
        text("--eval-function-path", None, "evaluation function", default_text="--rollout-function-path"),
        switch("--skip-eval-before-train", "no evaluation before the first step"),
        integer("--n-samples-per-eval-prompt", 1, "answers to each evaluation prompt"),
        number("--eval-temperature", None, "", default_text="--rollout-temperature"),
        number("--eval-top-p", None, "", default_text="--rollout-top-p"),
        integer("--eval-top-k", None, "", default_text="--rollout-top-k"),
        integer("--eval-max-response-len", None, "", default_text="--rollout-max-response-len"),
        integer("--eval-max-prompt-len", None, "", default_text="--rollout-max-prompt-len"),
        integer("--eval-max-context-len", None, "", default_text="--rollout-max-context-len"),
        integer("--eval-min-new-tokens", 0, "tokens before a stop is allowed"),
        text("--eval-input-key", None, "", default_text="--input-key"),
        text("--eval-label-key", None, "", default_text="--label-key"),
        text("--eval-tool-key", None, "", default_text="--tool-key"),
    ),
)

CHECKPOINT = Section(
    "Checkpoint",
    (
        text("--hf-checkpoint", None, "Hugging Face folder: tokenizer, configuration and the engines' first weights"),
        text("--model-name", None, "model family, where the configuration does not name it"),
        text("--load", None, "checkpoint folder to resume from"),
        text("--save", None, "checkpoint folder"),
        integer("--save-interval", None, "save after every so many steps, at epoch ends and at the end"),
        text("--save-hf", None, "also write Hugging Face folders here; {rollout_id} is replaced"),
        text(
            "--ref-load",
            None,
            "reference model; also the start when there is nothing to resume",
            default_text="--hf-checkpoint",
        ),
        integer("--ref-ckpt-step", None, "step of --ref-load"),
        integer("--ckpt-step", None, "step of --load", default_text="the newest complete one"),
        choice(
            "--ckpt-format",
            "torch",
            ("torch", "torch_dist"),
            "torch_dist: checkpoints also hold the weights as Megatron's own do, for programs that read those",
        ),
        switch("--async-save", "write checkpoints beside training"),
        switch("--no-save-optim", "leave the optimizer out of checkpoints; they cannot be resumed exactly"),
    ),
)

SECTIONS = (DATA, BATCH, EVAL, CHECKPOINT)
