"""Answers that lack what training needs of them."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vime.errors import VimeError
from vime.rollout.answer import accept
from vime.rollout.client import Generation
from vime.sample import Sample, Status

CONTEXT: Any = SimpleNamespace(text=lambda ids, finished: "x" * len(ids))


def accepted(sample: Sample, reason: str, rows: int | None) -> Sample:
    """One answer of two tokens, with routes for `rows` positions."""
    routes = None if rows is None else np.ones((rows, 2, 2), np.uint8)
    answer = Generation([7, 8], [-0.5, -0.5], reason, routed_experts=routes)
    accept(Namespace(use_rollout_routing_replay=True), sample, answer, CONTEXT)
    return sample


def test_an_aborted_answer_without_routes_is_not_kept() -> None:
    """vllm-project/vime#32: the engine returns no routing for some aborted requests, which crashed the trainer later."""
    sample = accepted(Sample(tokens=[1, 2]), "abort", None)
    assert (sample.tokens, sample.response_length, sample.status) == ([1, 2], 0, Status.ABORTED)
    begun = accepted(Sample(tokens=[1, 2]), "abort", 3)
    assert (begun.tokens, begun.response_length) == ([1, 2, 7, 8], 2)
    again = accepted(begun, "abort", None)
    assert (again.tokens, len(again.rollout_routed_experts)) == ([1, 2, 7, 8], 3)


def test_a_finished_answer_without_routes_is_an_error() -> None:
    with pytest.raises(VimeError, match="no routed experts"):
        accepted(Sample(tokens=[1, 2]), "stop", None)
