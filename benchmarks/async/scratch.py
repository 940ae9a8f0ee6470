"""A generate function for the benchmark: a scratch turn of uneven length before each answer, as of a model that thinks or calls tools.

The scratch tokens cost the engine what tokens cost, and are thrown away; the answer is the toy's. Lengths follow a Pareto law (shape 1.1), so that
most are a few tokens and some are ten times longer; each depends on the sample's index alone, so that all schedules draw the same.
"""

from __future__ import annotations

import random
from argparse import Namespace
from dataclasses import replace

from vime.rollout import answer
from vime.rollout.client import SamplingParams
from vime.rollout.context import current
from vime.sample import Sample

LONGEST = 40  # the toy's model has 64 positions


def scratch_length(index: int) -> int:
    return min(LONGEST, int(4 * random.Random(index).paretovariate(1.1)))


async def generate(args: Namespace, sample: Sample, sampling_params: SamplingParams) -> Sample:
    left = scratch_length(sample.index or 0) if not sample.response_length else 0
    while left:  # a weight update may cut it short; it is paid in full all the same
        # min_tokens keeps the end token away, so that the turn is as long as drawn.
        params = replace(sampling_params, max_tokens=left, min_tokens=left)
        left -= len((await current().generate(sample.tokens or tokens_of(sample), params, sample.session_id)).token_ids)
    return await answer.generate(args, sample, sampling_params)


def tokens_of(sample: Sample) -> list[int]:
    return list(current().tokenizer(sample.prompt, add_special_tokens=False)["input_ids"])
