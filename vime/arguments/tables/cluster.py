"""Which processes run where, and what a run as a whole does."""

from __future__ import annotations

from vime.arguments.option import choice, integer, mapping, switch, text
from vime.arguments.tables.section import Section

RUN = Section(
    "Run",
    (
        text("--config", None, "TOML or YAML file of options; the command line overrides it", many=False),
        text(
            "--custom-config-path",
            None,
            "YAML file whose keys are set on the arguments last; also names of your own, for hooks",
        ),
        switch("--dry-run", "print the resolved plan (processes, devices, batches, tokens, memory) and start nothing"),
        switch(
            "--assume-files",
            "with --dry-run: do not look for checkpoints, data and other files, which are on another machine; the model's shape is then "
            "what the model flags say",
        ),
        choice(
            "--device",
            "auto",
            ("auto", "cpu", "cuda"),
            "what trainer and engines compute on; auto takes CUDA when a GPU is visible",
        ),
        integer("--seed", 1234, "seed of the trainer; engines get seed + rank"),
        integer("--num-rollout", None, "number of rollout steps; computed from --num-epoch when absent"),
        integer("--num-epoch", None, "passes over the prompt data"),
        integer(
            "--start-rollout-id", None, "number of the first step", default_text="the step after the loaded checkpoint"
        ),
        text(
            "--run-id",
            None,
            "name of the run in its folder, metrics and process list",
            default_text="time and random suffix",
        ),
        text("--run-dir", None, "folder for metrics, plots and traces", default_text="--save, else runs/<run id>"),
        switch("--debug-rollout-only", "generate and score only; no trainer is started"),
        switch("--debug-train-only", "train on saved rollouts only; no engine is started"),
    ),
)

CLUSTER = Section(
    "Cluster",
    (
        integer("--actor-num-nodes", 1, "nodes of the trainer"),
        integer("--actor-num-gpus-per-node", None, "trainer ranks on each node", default_text="--num-gpus-per-node"),
        integer(
            "--rollout-num-gpus",
            None,
            "devices for engines; 0 starts a router only",
            default_text="trainer's when colocated, else one engine",
        ),
        integer(
            "--rollout-num-gpus-per-engine", 1, "devices of one engine: its tensor x pipeline x data parallel size"
        ),
        integer(
            "--num-gpus-per-node",
            None,
            "devices of a node; on a CPU, ranks",
            default_text="those visible with CUDA, 1 on a CPU",
        ),
        switch("--colocate", "trainer and engines share devices and take turns"),
        switch("--offload", "same as --offload-train --offload-rollout"),
        switch(
            "--offload-train",
            "free the trainer's device memory while engines generate",
            default=None,
            default_text="with --colocate on CUDA",
        ),
        switch(
            "--offload-rollout",
            "let engines sleep while the trainer works",
            default=None,
            default_text="with --colocate on CUDA",
        ),
        choice(
            "--distributed-backend",
            None,
            ("nccl", "gloo"),
            "process group of the trainer",
            default_text="nccl with CUDA, gloo on a CPU",
        ),
        integer("--distributed-timeout-minutes", 10, "deadline of one collective"),
        choice("--train-backend", "megatron", ("megatron",), "trainer implementation"),
        mapping("--train-env-vars", {}, "environment of trainer processes, as JSON"),
        text("--http-proxy", None, "proxy for requests that leave the cluster (remote rewards)"),
        switch("--use-distributed-post", "send engine requests through one Ray actor a node"),
    ),
)

SECTIONS = (RUN, CLUSTER)
