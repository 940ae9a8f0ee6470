"""What runs inside a trainer rank."""

from __future__ import annotations

import json
import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch


def name_the_process(args: Namespace) -> None:
    """--custom-megatron-init-path: a word in the environment that child processes see."""
    import os

    os.environ["VIME_EXPERIMENT"] = str(args.run_id)


#: What `note_scoring` saw: store prefix -> number of passes.
passes: dict[str, int] = {}


def note_scoring(args: Namespace, model: torch.nn.Module, store_prefix: str) -> None:
    """--custom-megatron-before-log-prob-hook-path: counts the passes of each policy."""
    passes[store_prefix] = passes.get(store_prefix, 0) + 1


def freeze_embedding_at_first(
    args: Namespace, rollout_id: int, step_id: int, model: torch.nn.Module, optimizer: Any, opt_param_scheduler: Any
) -> None:
    """--custom-megatron-before-train-step-hook-path: the embedding does not learn in the first rollout."""
    for name, parameter in model.named_parameters():
        if "word_embeddings" in name:
            parameter.requires_grad_(rollout_id > 0)


def keep_a_copy(args: Namespace, version_dir: str, rollout_engines: list[str]) -> None:
    """--custom-update-weight-post-write-path: the newest version under a name that stays, and for whom it was."""
    target = Path(args.update_weight_disk_dir) / "newest"
    fresh = target.with_name(".newest.tmp")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(version_dir, fresh)
    (fresh / "engines.json").write_text(json.dumps(rollout_engines))
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)
