"""How new weights reach the engines."""

from __future__ import annotations

from vime.arguments.option import choice, integer, number, switch, text
from vime.arguments.tables.section import Section

WEIGHTS = Section(
    "Weight update",
    (
        choice("--update-weight-mode", "full", ("full", "delta"), "send everything, or what changed"),
        choice(
            "--update-weight-transport",
            None,
            ("nccl", "gloo", "ipc", "shm", "disk"),
            "how weights travel; shm is shared memory of one host",
            default_text="ipc when colocated on CUDA, nccl on CUDA; on a CPU shm where all is on this host and its shared memory has room, else gloo",
        ),
        integer("--update-weight-buffer-size", 512 * 2**20, "bytes of one bucket"),
        text("--update-weight-disk-dir", None, "folder of the disk transport, seen by trainer and engines"),
        switch("--update-weight-disk-keep-files", "keep old versions there"),
        text("--update-weight-local-checkpoint-dir", None, "folder on each engine host that deltas are applied to"),
        choice("--update-weight-delta-encoding", "xor", ("xor", "overwrite"), "how a changed tensor is written"),
        choice(
            "--update-weight-delta-checksum", "xxh3-128", ("xxh3-128", "blake3", "adler32"), "checksum of each tensor"
        ),
        text(
            "--custom-update-weight-post-write-path",
            None,
            "fn(args, version_dir, rollout_engines) -> None after a version is written",
        ),
        switch(
            "--update-weight-prefetch",
            "with nccl: engines receive while they generate, into memory for a second copy of the weights, and pause only to load",
        ),
        integer("--flush-cache-interval", 1, "drop the engines' caches at every so many updates; 0 only at the first"),
        switch(
            "--check-weight-update-equal",
            "after the first update, compare every tensor in the engines with the trainer's",
        ),
        integer(
            "--update-weights-interval",
            1,
            "deprecated: only 1 is left; --rollout-schedule overlaps generation and training",
        ),
        number(
            "--parity-threshold",
            None,
            "stop when mean |log p trainer - log p engine| exceeds this after an update",
            default_text="1e-4 in fp32, 0.1 otherwise",
        ),
    ),
)

SECTIONS = (WEIGHTS,)
