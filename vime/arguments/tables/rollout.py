"""Generation, rewards and the hooks that replace parts of either."""

from __future__ import annotations

from vime.arguments.option import choice, integer, number, switch, text
from vime.arguments.tables.section import Section

ROLLOUT = Section(
    "Rollout",
    (
        text("--rollout-function-path", "vime.rollout.generate.generate_rollout", "function of one rollout step"),
        choice(
            "--rollout-schedule",
            None,
            ("synchronous", "one-step-ahead", "fully-async", "in-flight"),
            "how far generation runs ahead of training",
            default_text="synchronous; in-flight with a --flush-cache-interval other than 1",
        ),
        number("--rollout-temperature", 1.0, "greater than 0; the trainer divides its logits by the same value"),
        number("--rollout-top-p", 1.0, "nucleus"),
        integer("--rollout-top-k", -1, "-1 samples from the whole vocabulary"),
        integer("--rollout-max-context-len", None, "prompt and response", default_text="the model's, at most"),
        integer(
            "--rollout-max-prompt-len",
            None,
            "longer prompts are left out",
            default_text="--rollout-max-context-len - 1",
        ),
        integer("--rollout-max-response-len", None, "tokens of an answer; required"),
        switch("--rollout-skip-special-tokens", "leave special tokens out of the response text"),
        text("--rollout-stop", None, "stop texts", many=True),
        integer("--rollout-stop-token-ids", None, "stop tokens", many=True),
        integer("--over-sampling-batch-size", None, "prompts drawn at a time", default_text="--rollout-batch-size"),
        switch("--partial-rollout", "unfinished answers are kept and continued in a later step"),
        switch("--mask-offpolicy-in-partial-rollout", "train only the tokens sampled since an answer was resumed"),
        number(
            "--rollout-request-timeout",
            1800.0,
            "seconds that one request may take, updates it lives through included, before its group is requeued",
        ),
        integer(
            "--rollout-request-retries",
            2,
            "how often a group is requeued after a timeout or an engine failure before it is dropped",
        ),
        switch(
            "--rollout-group-requests",
            "ask for all answers to a prompt in one request where nothing forbids it",
            default=True,
        ),
        number(
            "--max-failed-sample-ratio",
            0.5,
            "stop when this share of a step's samples failed (rewards, requests)",
        ),
        integer(
            "--max-policy-lag",
            None,
            "how many versions older than the trained weights a sample's oldest token may be",
            default_text="1 one step ahead, 2 where generation never stops; else no bound",
        ),
        switch("--buffer-sort-by-staleness", "oldest buffered groups first"),
        text("--rollout-external-engine-addrs", None, "engines that run already, HOST:PORT", many=True),
    ),
)

TRANSPORT = Section(
    "Rollout transport",
    (
        choice(
            "--rollout-data-transport",
            "object-store",
            ("object-store", "nixl", "straw"),
            "how samples reach the trainer",
        ),
        text("--rollout-data-dir", None, "folder of the queue", default_text="<save>/rollout_data"),
        choice(
            "--rollout-storage-profile", "local", ("local", "juicefs"), "what kind of file system that folder is on"
        ),
        text("--rollout-storage-declaration", None, "JSON file that declares the mount of a shared file system"),
        text("--rollout-queue-run-id", "rollout", "name of this run in the queue"),
        switch("--rollout-queue-online-gc", "free sealed packs that nobody owns while running"),
        number("--rollout-queue-lease-seconds", 300.0, "a worker silent for longer loses its prompts to others"),
        integer(
            "--rollout-generation-workers",
            1,
            "processes that generate and score, spread over the nodes; with 1 the rollout manager does it itself",
        ),
        integer("--rollout-queue-segment-mib", None, "size of one pack", default_text="1024"),
        integer("--rollout-io-concurrency", 4, "writes at a time"),
        integer(
            "--routing-replay-prefetch-microbatches",
            0,
            "leave routes and top-p masks in the queue; trainers read them for one micro-batch after another, this many ahead. "
            "0: they travel with their samples",
        ),
    ),
)

REWARD = Section(
    "Reward",
    (
        text(
            "--rm-type",
            None,
            "math, dapo, deepscaler, f1, gpqa, ifbench, remote_rm, random, reverse_word; boxed_ before one takes \\boxed{} first",
        ),
        text("--rm-url", None, "address of remote_rm"),
        number("--rm-timeout", 60.0, "seconds for one reward; a sample that takes longer is marked failed"),
        text("--reward-key", None, "the entry to train on, where rewards are dicts"),
        text("--eval-reward-key", None, "the entry to report in evaluation", default_text="--reward-key"),
        switch("--group-rm", "score all answers to a prompt in one call"),
    ),
)

HOOKS = Section(
    "Hooks (dotted paths, checked at start)",
    (
        text(
            "--custom-generate-function-path",
            None,
            "async fn(args, sample, sampling_params[, evaluation]) -> Sample | list[Sample]",
        ),
        text(
            "--rollout-sample-hook-path",
            None,
            "[async] fn(args, sample, *, rollout_id, evaluation) -> Sample | None; repeatable",
            repeat=True,
        ),
        text(
            "--custom-rm-path",
            None,
            "async fn(args, sample) -> number | dict; with --group-rm async fn(args, samples) -> list",
        ),
        text("--dynamic-sampling-filter-path", None, "fn(args, samples, **kw) -> bool | DynamicFilterOutput"),
        text("--buffer-filter-path", None, "fn(args, rollout_id, buffer, num_samples) -> groups"),
        text("--rollout-sample-filter-path", None, "fn(args, groups) -> None; sets remove_sample"),
        text("--rollout-all-samples-process-path", None, "fn(args, all_groups, data_source) -> None"),
        text("--custom-reward-post-process-path", None, "fn(args, samples) -> (raw_rewards, rewards)"),
        text("--custom-convert-samples-to-train-data-path", None, "fn(args, samples) -> dict"),
        text("--rollout-data-postprocess-path", None, "fn(args, rollout_id, rollout_data) on each trainer rank"),
        text(
            "--custom-rollout-log-function-path",
            None,
            "fn(rollout_id, args, samples, extra_metrics, rollout_time) -> bool",
        ),
        text("--custom-eval-rollout-log-function-path", None, "fn(rollout_id, args, data, extra_metrics) -> bool"),
    ),
)

AGENTS = Section(
    "Agents",
    (
        text(
            "--agent-path",
            None,
            "async fn(address, sample, sandbox) -> reward; turns come from the model at that address, OpenAI's or Anthropic's way",
        ),
        text(
            "--agent-tool-parser", "hermes", "how tool calls are written: hermes, none, or fn(text) -> (content, calls)"
        ),
        integer("--agent-max-turns", 32, "answers of the model in one run of the agent"),
        number("--agent-timeout", 600.0, "seconds of one run of the agent; after them its samples are marked failed"),
    ),
)

BUFFER = Section(
    "External rollout buffer",
    (
        text("--rollout-buffer-url", None, "address of an external generator"),
        integer("--fetch-trajectory-retry-times", -1, "-1 retries without end"),
        number("--min-batch-collection-ratio", 1.0, "share of a batch that is enough"),
        text("--rollout-task-type", "math", "task that the external generator is asked for"),
    ),
)

SECTIONS = (ROLLOUT, TRANSPORT, REWARD, HOOKS, AGENTS, BUFFER)
