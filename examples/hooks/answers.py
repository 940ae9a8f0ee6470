"""Generation of one sample."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from vime.rollout import context
from vime.rollout.answer import meta_of
from vime.sample import Sample, Status

_THINK_AGAIN = " Wait."


async def think_twice(args: Namespace, sample: Sample, sampling_params: Any, evaluation: bool = False) -> Sample:
    """--custom-generate-function-path: answer, be told to think again, answer anew. The words put between are not trained on."""
    run = context.current()
    first = await run.generate(sample.tokens, sampling_params, sample.session_id)
    sample.append_response_tokens(args, first.token_ids, first.logprobs, meta_info=meta_of(first))
    nudge = run.tokenizer(_THINK_AGAIN, add_special_tokens=False)["input_ids"]
    sample.append_response_tokens(args, nudge, trainable=False)
    second = await run.generate(sample.tokens, sampling_params, sample.session_id)
    sample.append_response_tokens(args, second.token_ids, second.logprobs, meta_info=meta_of(second))
    sample.response = run.text(sample.tokens[sample.prompt_length :], finished=True)
    sample.status = Status.COMPLETED if second.finish_reason == "stop" else Status.TRUNCATED
    return sample


def strip_response(args: Namespace, sample: Sample, *, rollout_id: int | None, evaluation: bool) -> None:
    """--rollout-sample-hook-path: blanks around an answer do not matter to the reward. Tokens stay as they were sampled."""
    sample.response = sample.response.strip()
