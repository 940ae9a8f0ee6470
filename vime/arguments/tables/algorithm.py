"""Advantages, losses, corrections for off-policy data, and how the trainer computes them."""

from __future__ import annotations

from vime.arguments.option import choice, integer, number, switch, text
from vime.arguments.tables.section import Section

ALGORITHM = Section(
    "Algorithm",
    (
        choice(
            "--advantage-estimator",
            "grpo",
            (
                "grpo",
                "gspo",
                "cispo",
                "reinforce_plus_plus",
                "reinforce_plus_plus_baseline",
                "ppo",
                "on_policy_distillation",
            ),
            "how rewards become advantages",
        ),
        choice("--pg-loss-type", None, ("ppo", "reinforce"), "policy gradient", default_text="the estimator's"),
        choice("--loss-type", "policy_loss", ("policy_loss", "sft_loss", "custom_loss"), "what is minimised"),
        number("--eps-clip", 0.2, "lower clip range of the ratio"),
        number("--eps-clip-high", None, "upper clip range", default_text="--eps-clip"),
        number("--eps-clip-c", None, "bound of the dual clip, greater than 1"),
        number("--value-clip", 0.2, "clip range of the value loss"),
        number("--kl-coef", 0.0, "weight of the KL to the reference in the reward"),
        switch("--use-kl-loss", "compute the KL to the reference in the loss"),
        number("--kl-loss-coef", 0.0, "its weight"),
        choice("--kl-loss-type", "k1", ("k1", "k2", "k3", "low_var_kl"), "estimator of the KL"),
        switch("--use-unbiased-kl", "multiply the KL estimate by the ratio"),
        integer("--ref-update-interval", None, "copy the actor into the reference every so many steps"),
        number("--entropy-coef", 0.0, "weight of the entropy bonus"),
        number("--gamma", 1.0, "discount"),
        number("--lambd", 1.0, "lambda of GAE"),
        switch("--normalize-advantages", "whiten advantages over the batch"),
        switch("--disable-grpo-std-normalization", "subtract the group mean only"),
        switch("--disable-rewards-normalization", "use raw rewards"),
        switch("--disable-compute-advantages-and-returns", "for supervised losses"),
        switch("--calculate-per-token-loss", "mean over the tokens of a step instead of over its samples"),
        switch("--use-rollout-entropy", "record entropies of the rollout"),
        integer("--num-critic-only-steps", 0, "steps in which only the critic learns"),
        text("--megatron-config-path", None, "YAML with Megatron options that differ for actor and critic"),
        text("--custom-advantage-function-path", None, "fn(args, rollout_data) -> None"),
        text("--custom-loss-function-path", None, "fn(args, batch, logits, sum_of_sample_mean) -> (loss, metrics)"),
        text(
            "--custom-pg-loss-reducer-function-path",
            None,
            "fn(total_lengths, response_lengths, loss_masks, per_token) -> callable",
        ),
    ),
)

MISMATCH = Section(
    "Trainer and engine mismatch",
    (
        switch("--use-rollout-logprobs", "take the engine's log-probabilities as the old policy's"),
        switch("--use-tis", "truncated importance sampling between trainer and engine"),
        number("--tis-clip", 2.0, "upper bound of the weight"),
        number("--tis-clip-low", 0.0, "lower bound of the weight"),
        text("--custom-tis-function-path", None, "fn(args, *, pg_loss, ...) -> (pg_loss, masks, metrics)"),
        switch("--get-mismatch-metrics", "report what the custom TIS function measures without applying it"),
        switch("--use-opsm", "mask sequences that drifted off policy"),
        number("--opsm-delta", 1e-4, "KL beyond which a sequence with negative advantage is masked"),
        switch("--use-routing-replay", "record expert routes in the old pass and replay them in training"),
        switch("--use-rollout-routing-replay", "replay the engine's expert routes"),
        switch("--use-score-centering", "control variate that centres the sampled score"),
        integer("--score-centering-top-k", 128, "tokens of its head"),
    ),
)

DISTILLATION = Section(
    "On-policy distillation",
    (
        switch("--use-opd", "subtract the reverse KL to a teacher from the advantage"),
        choice("--opd-type", None, ("vllm", "megatron"), "where the teacher runs"),
        number("--opd-kl-coef", 1.0, "its weight"),
        text("--opd-teacher-model", "teacher", "with --opd-type vllm: the teacher's name in --vllm-config"),
        text("--opd-teacher-load", None, "teacher checkpoint, with --opd-type megatron"),
        integer("--opd-teacher-ckpt-step", None, "step of it"),
    ),
)

TRAIN = Section(
    "Training",
    (
        number("--lr", 1e-6, "learning rate"),
        number("--clip-grad", 1.0, "bound of the gradient norm"),
        switch("--recompute-loss-function", "recompute the loss in the backward pass to save memory"),
        integer("--log-probs-chunk-size", -1, "tokens whose logits exist at a time; -1 all"),
        text("--only-train-params-name-list", None, "regular expressions of the parameters that learn", many=True),
        text("--freeze-params-name-list", None, "regular expressions of the parameters that do not", many=True),
        switch("--freeze-indexer", "freeze the sparse-attention indexer"),
        switch("--allgather-cp", "contiguous context parallelism"),
        switch("--release-train", "end trainer processes between steps"),
        switch("--reset-optimizer-states", "fresh optimizer state in every rollout step"),
        switch("--use-stateless-adam", "no moments kept between rollout steps; needs --no-save-optim"),
        switch("--keep-old-actor", "keep the weights that generated the batch, for old log-probabilities"),
        choice("--qwen-gdn-backend", "fla", ("fla", "flashqla"), "kernel of gated delta networks"),
        switch("--force-fp8-ue8m0-scale", "power-of-two scales in block FP8"),
        switch("--enable-mtp-training", "train multi-token prediction layers"),
        text("--custom-model-provider-path", None, "fn(pre_process, post_process, vp_stage=None) -> GPTModel"),
        text("--custom-megatron-init-path", None, "fn(args)"),
        text("--custom-megatron-before-log-prob-hook-path", None, "fn(args, model, store_prefix)"),
        text(
            "--custom-megatron-before-train-step-hook-path",
            None,
            "fn(args, rollout_id, step_id, model, optimizer, opt_param_scheduler)",
        ),
    ),
)

SECTIONS = (ALGORITHM, MISMATCH, DISTILLATION, TRAIN)
