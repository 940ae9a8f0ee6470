"""Answers of an engine become responses of samples."""

from __future__ import annotations

import time
import uuid
from argparse import Namespace

from vime.rollout.client import Generation, SamplingParams
from vime.rollout.context import RolloutContext, current
from vime.rollout.sampling import budget
from vime.sample import ResponseMeta, Sample, Status

_STATUS = {"stop": Status.COMPLETED, "length": Status.TRUNCATED, "abort": Status.ABORTED}


async def generate(
    args: Namespace, sample: Sample, sampling_params: SamplingParams, evaluation: bool = False
) -> Sample:
    """The default ``--custom-generate-function-path``: one request, from where `sample` stands.

    A finished sample is returned as it is; one without budget is TRUNCATED. Raises EngineError and EngineTimeout, with `sample` unchanged.
    """
    context = current()
    if not prepare(args, sample, sampling_params, context, evaluation):
        return sample
    params = sampling_params.with_budget(budget(sample, sampling_params))
    answer = await context.generate(sample.tokens, params, sample.session_id)
    accept(args, sample, answer, context)
    return sample


def prepare(
    args: Namespace, sample: Sample, params: SamplingParams, context: RolloutContext, evaluation: bool = False
) -> bool:
    """Make `sample` ready for a request; False when it needs none."""
    if sample.status not in (Status.PENDING, Status.ABORTED):
        return False
    if sample.session_id is None:
        sample.session_id = uuid.uuid4().hex
    if not sample.tokens:
        sample.tokens = list(context.tokenizer(sample.prompt, add_special_tokens=False)["input_ids"])
    if budget(sample, params) == 0:
        sample.status = Status.TRUNCATED
        return False
    if sample.response_length and args.mask_offpolicy_in_partial_rollout and not evaluation:
        sample.mask_response(sample.response_length)
    return True


def accept(args: Namespace, sample: Sample, answer: Generation, context: RolloutContext) -> None:
    """Append `answer` to `sample` and set its status.

    An aborted answer may lack the experts that it was routed to. It cannot be replayed, so its tokens are not kept.
    """
    end = time.time()
    sample.trace.append({"name": "generate", "start": end - answer.meta.get("e2e_s", 0.0), "end": end})
    if args.use_rollout_routing_replay and answer.finish_reason == "abort" and answer.routed_experts is None:
        sample.status = Status.ABORTED
        return
    finished = answer.finish_reason == "stop"
    continued = sample.response_length > 0
    text = "" if continued else context.text(answer.token_ids, finished)
    if answer.token_ids:
        sample.append_response_tokens(args, answer.token_ids, answer.logprobs, True, meta_of(answer), text)
    if continued:
        # Decoded as a whole: a character may lie across the seam.
        sample.response = context.text(sample.tokens[sample.prompt_length :], finished)
    sample.status = _STATUS[answer.finish_reason]


def can_share_request(args: Namespace, group: list[Sample]) -> bool:
    """Whether one request may ask for all answers of the group: all unanswered, same prompt, nothing of the user's own in between."""
    if len(group) < 2 or not args.rollout_group_requests:
        return False
    first = group[0]
    return all(
        sample.status is Status.PENDING
        and not sample.response_length
        and sample.tokens == first.tokens
        and sample.generate_function_path is None
        for sample in group
    )


def meta_of(answer: Generation) -> ResponseMeta:
    """What the engine recorded of `answer` beside tokens and log-probabilities, for `Sample.append_response_tokens`."""
    return ResponseMeta(
        versions=answer.weight_versions,
        nucleus=answer.sampling_mask,
        topk=answer.topk,
        routed_experts=answer.routed_experts,
        routed_experts_start=answer.routed_experts_start,
        cached_tokens=int(answer.meta.get("cached_tokens", 0)),
        prompt_tokens=int(answer.meta.get("prompt_tokens", 0)),
    )
