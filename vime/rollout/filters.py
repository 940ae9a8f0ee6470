"""Dynamic filters: which groups are worth training on (``--dynamic-sampling-filter-path``)."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from vime.rollout.types import DynamicFilterOutput
from vime.sample import Sample

#: Rewards that differ by less teach nothing.
_EQUAL = 1e-9


def check_reward_nonzero_std(args: Namespace, samples: list[Sample], **_: Any) -> DynamicFilterOutput:
    """Drop groups whose answers all got the same reward: their advantages are zero (DAPO, arXiv 2503.14476, section 3.2)."""
    rewards = [sample.get_reward_value(args) for sample in samples if not sample.remove_sample]
    if not rewards:
        return DynamicFilterOutput(keep=False, reason="no_reward")
    if max(rewards) - min(rewards) > _EQUAL:
        return DynamicFilterOutput(keep=True)
    return DynamicFilterOutput(keep=False, reason=f"zero_std_{rewards[0]:g}")


def check_reward_nonzero_std_with_fallback(args: Namespace, samples: list[Sample], **more: Any) -> DynamicFilterOutput:
    """The same, but a group is kept after all when dropping it would mean drawing another batch of prompts."""
    output = check_reward_nonzero_std(args, samples, **more)
    return DynamicFilterOutput(
        keep=output.keep, reason=output.reason, keep_when_insufficient=output.reason != "no_reward"
    )


def apply(hook: Any, args: Namespace, samples: list[Sample]) -> DynamicFilterOutput:
    """What `hook` says of a group; a plain bool is taken for keep. No hook keeps everything."""
    if hook is None:
        return DynamicFilterOutput(keep=True)
    output = hook(args, samples)
    return (
        output
        if isinstance(output, DynamicFilterOutput)
        else DynamicFilterOutput(keep=bool(output), reason=None if output else "filtered")
    )
