"""What a process that opens a queue does with it: go on in place, or begin a branch from the checkpoint. Pure.

In place, batches that were planned after the checkpoint are trained again as they were: their weights are gone, their samples are not. That
holds as long as nothing that shapes them or their training has changed, and as long as the checkpoint is not older than one that was complete:
what only older checkpoints would need may have been freed.
"""

from __future__ import annotations

import hashlib
import json
from argparse import Namespace
from dataclasses import dataclass
from typing import Any

from vime.arguments import catalogue
from vime.durable.history import History

#: Sections of options under which the same batches lead to the same weights whatever is said there.
_FREE_SECTIONS = {"Rollout transport", "Tracking", "Debugging", "Checks for CI"}
_FREE = {
    *("save", "load", "save_interval", "ckpt_step", "save_hf", "async_save", "run_id", "run_dir", "config", "dry_run"),
    *("num_rollout", "num_epoch", "start_rollout_id", "accept_new_data", "eval_interval", "skip_eval_before_train"),
    *("rollout_request_timeout", "rollout_request_retries", "use_fault_tolerance", "distributed_timeout_minutes"),
    *("eval_config", "eval_prompt_data", "eval_function_path", "router_policy", "hf_config", "given"),
}


@dataclass(frozen=True)
class Branch:
    """Begin anew from the checkpoint's data state, because of `reason`."""

    reason: str


@dataclass(frozen=True)
class InPlace:
    """Go on with the branch in force. `replayed`: steps whose batches are trained as they were planned."""

    replayed: tuple[int, ...]


def decide(
    known: History | None,
    branch: str | None,
    step: int,
    checkpoint: dict[str, Any] | None,
    pool: str,
    config: str,
    made: str,
) -> Branch | InPlace:
    """What to do with a queue for a run that begins after `step` (-1: from the start).

    `known` and `branch`: the branch in force, None in a new pool. `checkpoint`: what `DurableStore.save` wrote beside that
    step. `config` and `made`: digests of the present options and of those of the branch.
    """
    if known is None:
        return Branch("a new queue")
    if checkpoint is None and step >= 0:
        return Branch("the checkpoint was saved without this queue")
    if checkpoint is not None and (checkpoint["pool"], checkpoint["branch"]) != (pool, branch):
        return Branch(f"the checkpoint belongs to branch {checkpoint['branch']} of queue {checkpoint['pool'][:8]}")
    committed = known.progress["committed"]
    if step < committed:
        return Branch(f"back from step {committed} to step {step}")
    replayed = tuple(sorted(number for number in known.batches if number > step))
    if replayed and config != made:
        return Branch(f"options have changed since steps {replayed[0]} to {replayed[-1]} were planned")
    return InPlace(replayed)


def digest(args: Namespace) -> str:
    """Of every option that shapes what is sampled or how it is trained."""
    free = _FREE | {
        option.name
        for group in catalogue.sections().values()
        for one in group
        if one.title in _FREE_SECTIONS
        for option in one.options
    }
    shaping = {name: value for name, value in vars(args).items() if name not in free}
    return hashlib.sha256(json.dumps(shaping, sort_keys=True, default=str).encode()).hexdigest()
