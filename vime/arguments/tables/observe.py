"""Metrics, traces, dumps and checks for CI."""

from __future__ import annotations

from vime.arguments.option import choice, integer, number, switch, text
from vime.arguments.tables.section import Section

TRACKING = Section(
    "Tracking",
    (
        switch("--use-wandb", "report to Weights & Biases as well"),
        choice("--wandb-mode", None, ("online", "offline", "disabled"), ""),
        text("--wandb-dir", None, ""),
        text("--wandb-key", None, "kept out of every dump of the arguments"),
        text("--wandb-host", None, ""),
        text("--wandb-team", None, ""),
        text("--wandb-group", None, ""),
        text("--wandb-project", None, ""),
        text("--wandb-run-id", None, ""),
        switch("--wandb-always-use-train-step", "use the optimizer step as the axis of rollout metrics too"),
        switch("--disable-wandb-random-suffix", "run names without a random suffix"),
        switch("--use-tensorboard", "write TensorBoard files as well"),
        text("--tb-project-name", None, ""),
        text("--tb-experiment-name", None, ""),
        integer("--trace-samples", 64, "samples of each step whose spans are recorded for `vime trace`; 0 for none"),
        switch("--log-passrate", "report pass@k of the rollout"),
        switch("--log-multi-turn", "report turns"),
        text("--log-reward-category", None, "entry of dict rewards whose shares are reported"),
        switch("--log-correct-samples", "report lengths of correct answers"),
    ),
)

DEBUG = Section(
    "Debugging",
    (
        text("--save-debug-rollout-data", None, "file of each rollout; {rollout_id} is replaced"),
        text("--load-debug-rollout-data", None, "train on such files; implies --debug-train-only"),
        number("--load-debug-rollout-data-subsample", None, "share of them to keep"),
        text("--load-forge-rollout-data", None, "replay prompts and answers while engines run"),
        text("--save-debug-train-data", None, "file of each training batch; {rollout_id} is replaced"),
        text("--dump-details", None, "folder for everything above"),
        choice(
            "--profile-target",
            None,
            ("train_overall", "train_actor", "train_log_probs"),
            "what the torch profiler covers",
            many=True,
        ),
        choice("--memory-recorder", "torch", ("torch", "memray"), "allocation recorder"),
        text("--memory-snapshot-dir", None, "folder for snapshots"),
        integer("--memory-snapshot-num-steps", None, "steps to record"),
        switch("--record-memory-history", "record allocations"),
    ),
)

CI = Section(
    "Checks for CI",
    (
        switch("--ci-test", "turn the checks of this section on"),
        switch("--ci-disable-kl-checker", "do not require a zero KL at the first step"),
        number("--ci-train-rollout-logprob-abs-diff-threshold", 0.1, "bound of the mean log-probability difference"),
        text("--ci-save-grad-norm", None, "write the gradient norm"),
        text("--ci-load-grad-norm", None, "compare the gradient norm"),
    ),
)

SECTIONS = (TRACKING, DEBUG, CI)
