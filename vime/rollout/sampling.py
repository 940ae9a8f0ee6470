"""Sampling parameters of training and evaluation requests."""

from __future__ import annotations

from argparse import Namespace

from vime.rollout.client import SamplingParams
from vime.rollout.eval_config import EvalDataset
from vime.sample import Sample


def cuts_distribution(args: Namespace) -> bool:
    """Whether top-p or top-k leave tokens out while training, so that engines record, for all their requests, what was
    left, and trainers renormalise log-probabilities over it."""
    return args.rollout_top_p < 1 or args.rollout_top_k != -1


def train_sampling(args: Namespace) -> SamplingParams:
    """Of a training request. Temperature, top-p and top-k are those that the trainer's log-probabilities assume."""
    return SamplingParams(
        max_tokens=args.rollout_max_response_len,
        temperature=args.rollout_temperature,
        top_p=args.rollout_top_p,
        top_k=args.rollout_top_k,
        stop=tuple(args.rollout_stop or ()),
        stop_token_ids=tuple(args.rollout_stop_token_ids or ()),
        skip_special_tokens=args.rollout_skip_special_tokens,
        logprobs=args.score_centering_top_k if args.use_score_centering and args.rollout_top_p == 1 else 0,
        sampling_mask=cuts_distribution(args),
        max_context_len=args.rollout_max_context_len,
    )


def eval_sampling(dataset: EvalDataset, args: Namespace) -> SamplingParams:
    """Of a request of `dataset`. Temperature 0 is greedy; engines that record what was left to sample from refuse it, and get the best one."""
    best = dataset.temperature == 0 and cuts_distribution(args)
    return SamplingParams(
        max_tokens=dataset.max_response_len,
        temperature=1.0 if best else dataset.temperature,
        top_p=1.0 if best else dataset.top_p,
        top_k=1 if best else dataset.top_k,
        stop=tuple(dataset.stop or ()),
        stop_token_ids=tuple(dataset.stop_token_ids or ()),
        min_tokens=dataset.min_new_tokens,
        skip_special_tokens=dataset.skip_special_tokens,
        repetition_penalty=dataset.repetition_penalty,
        max_context_len=dataset.max_context_len,
    )


def budget(sample: Sample, params: SamplingParams) -> int:
    """Tokens that `sample` may still get: the answer's limit less what it has, and never past the context."""
    left = params.max_tokens - sample.response_length
    limit = params.max_context_len
    return max(0, left if limit is None else min(left, limit - len(sample.tokens)))
