"""What the sampler could have drawn at each response token: recorded supports, checked and laid out for scoring.

Two kinds of record. The *nucleus* is all that top-p and top-k left to sample from; trainer log-probabilities are
renormalised over it, or their ratio to the engine's would not be 1 for equal weights. The *head* is the k likeliest tokens
under the full vocabulary, for score centering where nothing was cut off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from vime.errors import VimeError
from vime.rollout.sampling import cuts_distribution
from vime.trainer.log_probs import Picks

PATCH = "vllm-score-centering.patch"
_LARGEST_ID = 2**31
_RTOL, _ATOL = 1e-4, 1e-5


class Recorded(Protocol):
    """The part of a `vime.sample.Sample` that is read here."""

    tokens: list[int]
    response_length: int
    rollout_log_probs: list[float] | None
    rollout_top_p_token_ids: list[int] | None
    rollout_top_p_offsets: list[int] | None
    rollout_top_p_log_probs: list[float] | None
    rollout_topk_token_ids: list[list[int]] | None
    rollout_topk_log_probs: list[list[float]] | None


@dataclass(frozen=True)
class Support:
    """Ragged rows of one sample: token i owns ids[offsets[i]:offsets[i + 1]] (none: no record), with the sampler's
    log-probabilities fp32 if they were recorded. offsets, ids int64."""

    offsets: np.ndarray
    ids: np.ndarray
    log_probs: np.ndarray | None

    @property
    def rows(self) -> np.ndarray:
        """Whose each entry is, int64."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


def needed(args: Any) -> bool:
    """Whether samples must come with a support."""
    return cuts_distribution(args) or args.use_score_centering


def of_sample(args: Any, sample: Recorded, mask: Sequence[int], name: str) -> Support | None:
    """The support of `sample` that the flags need, checked; None when they need none.

    Raises VimeError naming sample and token: a trained token without record, ids that repeat or are out of range,
    log-probabilities that are none, and, for exact centering, a sampled token that its own support does not hold.
    """
    if cuts_distribution(args):
        support = _nucleus(sample, sum(mask), name)
        if args.use_score_centering and support.log_probs is None:
            if sum(mask):
                raise VimeError(
                    "score centering under top-p needs the sampler's log-probabilities on its support",
                    where=name,
                    hint=f"apply {PATCH} and start the engine with --vllm-return-sampling-mask-logprobs",
                )
            support = Support(np.zeros_like(support.offsets), np.zeros(0, np.int64), np.zeros(0, np.float32))
    elif args.use_score_centering:
        support = _head(sample, np.asarray(mask), sum(mask), name)
    else:
        return None
    _check(support, np.asarray(mask), name)
    if args.use_score_centering and cuts_distribution(args):
        _check_sampled(support, sample, np.asarray(mask), name)
    return support


def _nucleus(sample: Recorded, trained: int, name: str) -> Support:
    offsets, ids = sample.rollout_top_p_offsets, sample.rollout_top_p_token_ids
    if offsets is None or ids is None:
        if trained:
            raise VimeError(
                "sampled with top-p or top-k, but the engine did not record from which tokens",
                where=name,
                hint="start it with --vllm-return-sampling-mask",
            )
        offsets, ids = [0] * (sample.response_length + 1), []
    values = sample.rollout_top_p_log_probs
    return Support(
        np.asarray(offsets, np.int64),
        np.asarray(ids, np.int64),
        None if values is None else np.asarray(values, np.float32),
    )


def _head(sample: Recorded, mask: np.ndarray, trained: int, name: str) -> Support:
    ids, values = sample.rollout_topk_token_ids, sample.rollout_topk_log_probs
    if ids is None or values is None:
        if trained:
            raise VimeError(
                "score centering needs the likeliest tokens at each position, which the engine did not report",
                where=name,
                hint="--vllm-max-logprobs must be at least --score-centering-top-k plus 1",
            )
        ids, values = [[]] * len(mask), [[]] * len(mask)
    # Tool tokens have rows of zeros: nothing was sampled there.
    rows = [row if kept else [] for row, kept in zip(ids, mask, strict=True)]
    kept_values = [row if kept else [] for row, kept in zip(values, mask, strict=True)]
    offsets = np.concatenate(([0], np.cumsum([len(row) for row in rows]))).astype(np.int64)
    return Support(
        offsets,
        np.asarray([i for row in rows for i in row], np.int64),
        np.asarray([x for row in kept_values for x in row], np.float32),
    )


def _check(support: Support, mask: np.ndarray, name: str) -> None:
    sizes, rows = np.diff(support.offsets), support.rows
    empty = (sizes == 0) & (mask != 0)
    if empty.any():
        raise VimeError(f"{name}: token {int(empty.argmax())} is trained but has no recorded support")
    wrong = (support.ids < 0) | (support.ids >= _LARGEST_ID)
    if wrong.any():
        at = int(wrong.argmax())
        raise VimeError(f"{name}: the support of token {int(rows[at])} holds the id {int(support.ids[at])}")
    order = np.lexsort((support.ids, rows))
    repeated = (np.diff(support.ids[order]) == 0) & (np.diff(rows[order]) == 0)
    if repeated.any():
        at = int(order[int(repeated.argmax())])
        raise VimeError(f"{name}: the support of token {int(rows[at])} holds the id {int(support.ids[at])} twice")
    if support.log_probs is not None:
        bad = ~(np.isfinite(support.log_probs) & (support.log_probs <= _ATOL))
        if bad.any():
            at = int(bad.argmax())
            raise VimeError(
                f"{name}: {float(support.log_probs[at])} is no log-probability (support of token {int(rows[at])})"
            )


def _check_sampled(support: Support, sample: Recorded, mask: np.ndarray, name: str) -> None:
    assert support.log_probs is not None
    response = np.asarray(sample.tokens[len(sample.tokens) - sample.response_length :], np.int64)
    reported = np.asarray(sample.rollout_log_probs, np.float64)
    rows = support.rows
    hit = support.ids == response[rows]
    held = np.zeros(len(response), bool)
    held[rows[hit]] = True
    absent = ~held & (mask != 0)
    if absent.any():
        raise VimeError(f"{name}: token {int(absent.argmax())} was sampled from a support that does not hold it")
    known = reported[rows[hit]]
    off = (np.abs(support.log_probs[hit] - known) > _ATOL + _RTOL * np.abs(known)) & (mask[rows[hit]] != 0)
    if off.any():
        at = int(off.argmax())
        raise VimeError(
            f"{name}: token {int(rows[hit][at])} was sampled with log-probability {float(known[at]):.6f}, its support says "
            f"{float(support.log_probs[hit][at]):.6f}"
        )


def lay_out(supports: Sequence[Support], responses: Sequence[Sequence[int]]) -> tuple[Picks, torch.Tensor | None]:
    """Supports of samples laid one after another: picks over their response tokens, and the sampler's log-probabilities.

    `responses` are the response ids of each sample. Without log-probabilities, a sampled token that its record lacks is
    added to it: whatever was sampled could be sampled.
    """
    rows, ids, values, first = [], [], [], 0
    for support, response in zip(supports, responses, strict=True):
        sampled, own, own_ids = np.asarray(response, np.int64), support.rows, support.ids
        if support.log_probs is None:
            held = np.zeros(len(sampled), bool)
            held[own[own_ids == sampled[own]]] = True
            missing = np.nonzero(~held & (np.diff(support.offsets) > 0))[0]
            order = np.argsort(np.concatenate((own, missing)), kind="stable")
            own, own_ids = np.concatenate((own, missing))[order], np.concatenate((own_ids, sampled[missing]))[order]
        else:
            values.append(support.log_probs)
        rows.append(own + first)
        ids.append(own_ids)
        first += len(sampled)
    picks = Picks(torch.from_numpy(np.concatenate(rows)), torch.from_numpy(np.concatenate(ids)))
    return picks, torch.from_numpy(np.concatenate(values)) if len(values) == len(supports) else None
