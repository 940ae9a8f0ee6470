"""On-policy distillation with a teacher that is served: the student's own answers, scored by the teacher token by token (``--opd-type vllm``)."""

from __future__ import annotations

import asyncio
import logging
from argparse import Namespace
from collections.abc import Sequence

from vime.errors import EngineError
from vime.rollout.context import RolloutContext
from vime.sample import Sample

log = logging.getLogger(__name__)


def served_teacher(args: Namespace) -> str | None:
    """The name of the teacher among the frozen models; None when there is none, or when a user's function asks one of its own."""
    if not args.use_opd or args.opd_type != "vllm":
        return None
    names = [group.name for group in args.model_groups[1:]]
    return args.opd_teacher_model if args.opd_teacher_model in names else None


async def ask_teacher(args: Namespace, samples: Sequence[Sample], context: RolloutContext) -> None:
    """Set teacher_log_probs of every finished sample, at the rollout's temperature: compared are the distributions that were sampled from.

    A sample that the teacher could not score is marked failed; its entries are zeros, which nothing looks at.
    """
    name = served_teacher(args)
    if name is None:
        return
    teacher = context.models[name]

    async def score(sample: Sample) -> None:
        try:
            scores = await teacher.log_probs(sample.tokens, sample.prompt_length, args.rollout_temperature)
        except EngineError as error:
            log.warning("%s was not scored by the teacher: %s", sample.name, error)
            sample.fail("teacher")
            scores = [0.0] * sample.response_length
        sample.teacher_log_probs = scores

    await asyncio.gather(*(score(sample) for sample in samples if sample.teacher_log_probs is None))
