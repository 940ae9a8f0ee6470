"""A generate function for the benchmark of ragged lengths: one answer in eight may be as long as allowed, the others an eighth of it."""

from __future__ import annotations

from typing import Any

from vime.rollout.answer import generate as whole


async def generate(args: Any, sample: Any, sampling_params: Any, evaluation: bool = False) -> Any:
    """As the built-in one, with its own budget for a sample."""
    limit = args.rollout_max_response_len
    index = sample.index or 0
    short = index % 8 != 0
    return await whole(
        args, sample, sampling_params.with_budget(max(limit // 8, 1)) if short else sampling_params, evaluation
    )
