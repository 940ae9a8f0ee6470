"""The sample: one mutation point, lengths that cannot come apart, dictionaries that lose nothing."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime.errors import VimeError
from vime.sample import Nucleus, ResponseMeta, Sample, Status, TopK, VersionSpan, reward_number

ARGS = Namespace(use_rollout_routing_replay=False, reward_key=None, eval_reward_key=None)


@st.composite
def segments(draw: st.DrawFn) -> list[tuple[list[int], bool]]:
    """Turns of sampled (True) and given (False) tokens."""
    turn = st.tuples(st.lists(st.integers(0, 99), max_size=6), st.booleans())
    return draw(st.lists(turn, max_size=6))


def nucleus_of(tokens: list[int]) -> Nucleus:
    """Each token with one neighbour."""
    ids = [value for token in tokens for value in (token, token + 1)]
    return Nucleus(ids, list(range(0, len(ids) + 1, 2)), [-0.5] * len(ids))


@given(prompt=st.lists(st.integers(0, 99), min_size=1, max_size=5), turns=segments(), recorded=st.booleans())
def test_every_record_is_as_long_as_the_response_whatever_is_appended(
    prompt: list[int], turns: list[Any], recorded: bool
) -> None:
    """Public report slime#1440: "loss mask length != response length" in fully async runs with partial rollouts."""
    sample = Sample(tokens=list(prompt))
    for tokens, sampled in turns:
        meta = None
        if sampled and recorded:
            rows = [[token, 0] for token in tokens]
            meta = ResponseMeta(
                nucleus=nucleus_of(tokens),
                topk=TopK(rows, [[-0.1, -2.0]] * len(tokens)),
                versions=[VersionSpan("3", 0, len(tokens))],
            )
        sample.append_response_tokens(ARGS, tokens, [-0.1] * len(tokens) if sampled else None, sampled, meta)
    response = [token for tokens, _ in turns for token in tokens]
    assert sample.tokens == [*prompt, *response]
    assert sample.response_length == len(response)
    if turns:
        assert sample.loss_mask == [int(sampled) for tokens, sampled in turns for _ in tokens]
        assert sample.rollout_log_probs == [-0.1 if sampled else 0.0 for tokens, sampled in turns for _ in tokens]
    if sample.rollout_top_p_offsets is not None:
        assert len(sample.rollout_top_p_offsets) == len(response) + 1
        sizes = [b - a for a, b in zip(sample.rollout_top_p_offsets, sample.rollout_top_p_offsets[1:], strict=False)]
        assert sizes == [2 if sampled else 0 for tokens, sampled in turns for _ in tokens]
    sample.validate()


@given(prompt=st.lists(st.integers(0, 99), min_size=1, max_size=5), turns=segments())
def test_a_dictionary_gives_the_same_sample_back(prompt: list[int], turns: list[Any]) -> None:
    sample = Sample(tokens=list(prompt), label={"a": 1}, metadata={"x": [1]})
    for tokens, sampled in turns:
        meta = ResponseMeta(versions=[VersionSpan("7", 0, len(tokens))]) if sampled else None
        sample.append_response_tokens(ARGS, tokens, [-0.5] * len(tokens) if sampled else None, sampled, meta, "t")
    sample.invented_by_a_user = {"kept": True}  # type: ignore[attr-defined]
    again = Sample.from_dict(sample.to_dict())
    assert again.to_dict() == sample.to_dict()
    assert again.invented_by_a_user == {"kept": True}  # type: ignore[attr-defined]
    assert again.version_spans == sample.version_spans


@pytest.mark.parametrize(
    ("tokens", "log_probs", "trainable", "meta", "said"),
    [
        ([1, 2], None, True, None, "without log-probabilities"),
        ([1, 2], [-0.1], True, None, "2 tokens came with 1 log-probabilities"),
        ([1], [-0.1], False, None, "cannot have log-probabilities"),
        ([1], [-0.1], True, ResponseMeta(nucleus=Nucleus([1], [0, 1, 1])), "does not fit 1 tokens"),
        ([1, 2], [-0.1, -0.1], True, ResponseMeta(nucleus=Nucleus([1, 2], [0, 2, 1])), "nucleus"),
        ([1], [-0.1], True, ResponseMeta(versions=[VersionSpan("1", 0, 5)]), "outside 1 tokens"),
        ([1], [-0.1], True, ResponseMeta(topk=TopK([], [])), "0 top-k rows do not fit 1 tokens"),
        ([1], [-0.1], True, ResponseMeta(routed_experts=np.zeros((9, 1, 1))), "do not continue"),
    ],
)
def test_a_refused_append_leaves_the_sample_as_it_was(
    tokens: list[int], log_probs: list[float] | None, trainable: bool, meta: ResponseMeta | None, said: str
) -> None:
    sample = Sample(index=4, group_index=2, tokens=[9, 9])
    sample.append_response_tokens(ARGS, [5], [-0.2], True, None, "five")
    before = sample.to_dict()
    with pytest.raises(VimeError, match=said) as error:
        sample.append_response_tokens(ARGS, tokens, log_probs, trainable, meta)
    assert error.value.where == "sample 4 of group 2"
    assert sample.to_dict() == before


def test_routes_arrive_whole_or_from_where_the_last_ended() -> None:
    sample = Sample(tokens=[1, 2])
    whole = np.arange(3).reshape(3, 1, 1)
    sample.append_response_tokens(ARGS, [3, 4], [-0.1, -0.1], True, ResponseMeta(routed_experts=whole))
    sample.append_response_tokens(
        ARGS, [5], [-0.1], True, ResponseMeta(routed_experts=np.array([[[9]]]), routed_experts_start=3)
    )
    assert sample.rollout_routed_experts.ravel().tolist() == [0, 1, 2, 9]


def test_replay_without_routes_is_refused_for_sampled_tokens_only() -> None:
    """vime#14: an engine too old returned no routes, and training crashed much later."""
    args = Namespace(use_rollout_routing_replay=True)
    sample = Sample(tokens=[1])
    with pytest.raises(VimeError, match="no routed experts"):
        sample.append_response_tokens(args, [2], [-0.1])
    sample.append_response_tokens(args, [3], None, trainable=False)
    assert sample.trained_mask == [0]


def test_a_teacher_scored_sample_cannot_grow() -> None:
    sample = Sample(tokens=[1])
    sample.append_response_tokens(ARGS, [2], [-0.1])
    sample.teacher_log_probs = [-0.3]
    with pytest.raises(VimeError, match="teacher"):
        sample.append_response_tokens(ARGS, [3], [-0.1])


def test_the_oldest_version_is_of_tokens_not_of_the_last_request() -> None:
    sample = Sample(tokens=[1])
    sample.append_response_tokens(
        ARGS, [2, 3], [-0.1] * 2, True, ResponseMeta(versions=[VersionSpan("4", 0, 1), VersionSpan("5", 1, 2)])
    )
    sample.append_response_tokens(ARGS, [4], [-0.1], True, ResponseMeta(versions=[VersionSpan("6", 0, 1)]))
    assert sample.oldest_version() == 4
    assert sample.version_spans[-1] == VersionSpan("6", 2, 3)
    assert sample.weight_versions == ["4", "5", "6"]
    assert Sample().oldest_version() is None


def test_reset_keeps_identity_and_prompt_only() -> None:
    sample = Sample(index=3, group_index=1, rollout_id=3, tokens=[1, 2], label="x", metadata={"a": 1})
    sample.append_response_tokens(ARGS, [7], [-0.1], True, ResponseMeta(versions=[VersionSpan("1", 0, 1)]), "seven")
    sample.status, sample.reward, sample.session_id = Status.COMPLETED, 1.0, "s"
    sample.fail("reward_timeout")
    sample.reset_response()
    fresh = Sample(index=3, group_index=1, rollout_id=3, tokens=[1, 2], label="x", metadata={"a": 1})
    assert sample == fresh


def test_masking_a_prefix_keeps_what_was_masked_already() -> None:
    sample = Sample(tokens=[1])
    sample.append_response_tokens(ARGS, [2, 3], [-0.1] * 2)
    sample.append_response_tokens(ARGS, [4], None, trainable=False)
    sample.append_response_tokens(ARGS, [5], [-0.1])
    sample.mask_response(1)
    assert sample.loss_mask == [0, 1, 0, 1]
    sample.remove_sample = True
    assert sample.trained_mask == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("reward", "key", "value"),
    [(1, None, 1.0), (True, None, 1.0), ({"score": -1.0, "acc": False}, "score", -1.0), (np.float32(0.5), None, 0.5)],
)
def test_one_accessor_for_number_and_dict_rewards(reward: Any, key: str | None, value: float) -> None:
    """Public report slime#275: a filter took a dict reward for a number."""
    assert reward_number(reward, key, "here") == value


@pytest.mark.parametrize(
    ("reward", "key", "said"),
    [
        (None, None, "no reward"),
        ({"a": 1}, None, "dict with a"),
        ({"a": 1}, "b", "no key 'b'"),
        ("x", None, "not a number"),
    ],
)
def test_a_reward_that_is_no_number_says_why(reward: Any, key: str | None, said: str) -> None:
    with pytest.raises(VimeError, match=said):
        reward_number(reward, key, "here")
