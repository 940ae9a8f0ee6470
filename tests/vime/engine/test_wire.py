"""Requests and answers of the token endpoint."""

from __future__ import annotations

from typing import Any

import pytest

from vime.engine.wire import engine_request_id, parse_answer, request_body
from vime.errors import EngineError
from vime.rollout.client import SamplingParams
from vime.sample import VersionSpan

ONE = SamplingParams(max_tokens=4)


def choice(tokens: list[int], logprobs: list[float] | None, **more: Any) -> dict[str, Any]:
    content = (
        None if logprobs is None else [{"token_id": t, "logprob": p} for t, p in zip(tokens, logprobs, strict=False)]
    )
    return {"index": 0, "token_ids": tokens, "finish_reason": "stop", "logprobs": {"content": content}} | more


def test_request_asks_for_logprobs_and_leaves_text_alone() -> None:
    body = request_body([5, 6], SamplingParams(max_tokens=4, seed=7, n=3))
    assert body["token_ids"] == [5, 6]
    sampling = body["sampling_params"]
    assert (sampling["logprobs"], sampling["seed"], sampling["n"], sampling["detokenize"]) == (0, 7, 3, False)
    assert "stop" not in sampling


def test_stop_texts_need_text_and_stay_in_the_answer() -> None:
    sampling = request_body([5], SamplingParams(max_tokens=4, stop=("end",)))["sampling_params"]
    assert (sampling["stop"], sampling["include_stop_str_in_output"], sampling["detokenize"]) == (["end"], True, True)


def test_topk_asks_for_one_more_and_keeps_the_best_k() -> None:
    params = SamplingParams(max_tokens=4, logprobs=2)
    assert request_body([5], params)["sampling_params"]["logprobs"] == 3
    top = [{"token_id": 9, "logprob": -3.0}, {"token_id": 4, "logprob": -0.1}, {"token_id": 5, "logprob": -2.0}]
    answer = {"choices": [choice([9], [-3.0])]}
    answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"] = top
    (one,) = parse_answer(answer, params, "here")
    assert one.topk is not None
    assert (one.topk.ids, one.topk.log_probs) == ([[4, 5]], [[-0.1, -2.0]])


def test_answers_come_in_the_order_of_their_index_with_versions() -> None:
    second = choice([8], [-0.5], index=1, finish_reason="length")
    first = choice([7], [-0.25], weight_versions=[{"version": "3", "start": 0, "end": 1}])
    usage = {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}
    got = parse_answer({"choices": [second, first], "usage": usage}, SamplingParams(max_tokens=1, n=2), "here")
    assert [one.token_ids for one in got] == [[7], [8]]
    assert got[0].weight_versions == (VersionSpan("3", 0, 1),)
    assert [one.finish_reason for one in got] == ["stop", "length"]
    assert got[0].meta == {"prompt_tokens": 5.0, "cached_tokens": 4.0}


@pytest.mark.parametrize("logprobs", [None, [-0.5]], ids=["none", "too few"])
def test_tokens_without_logprobs_are_an_error_never_zeros(logprobs: list[float] | None) -> None:
    with pytest.raises(EngineError, match=r"2 tokens came with [01] log-probabilities"):
        parse_answer({"choices": [choice([7, 8], logprobs)]}, ONE, "here")


def test_logprobs_of_other_tokens_are_an_error() -> None:
    answer = {"choices": [choice([7], [-0.5])]}
    answer["choices"][0]["logprobs"]["content"][0]["token_id"] = 8
    with pytest.raises(EngineError, match="other tokens than those sampled"):
        parse_answer(answer, ONE, "here")


def test_an_aborted_request_may_come_back_empty() -> None:
    (one,) = parse_answer({"choices": [choice([], None, finish_reason="abort")]}, ONE, "here")
    assert (one.token_ids, one.finish_reason) == ([], "abort")


@pytest.mark.parametrize("answer", [{}, {"choices": [{}]}, [], {"choices": [choice([1], [0.0], finish_reason="odd")]}])
def test_an_unreadable_answer_is_an_engine_error(answer: Any) -> None:
    with pytest.raises(EngineError, match="cannot be read"):
        parse_answer(answer, ONE, "here")


def test_a_missing_answer_and_a_missing_mask_are_named() -> None:
    with pytest.raises(EngineError, match="1 answers instead of 2"):
        parse_answer({"choices": [choice([7], [-0.5])]}, SamplingParams(max_tokens=1, n=2), "here")
    with pytest.raises(EngineError, match="no sampling mask") as caught:
        parse_answer({"choices": [choice([7], [-0.5])]}, SamplingParams(max_tokens=1, sampling_mask=True), "here")
    assert caught.value.hint is not None
    assert "--vllm-return-sampling-mask" in caught.value.hint


def test_aborts_use_the_engines_own_name_of_a_request() -> None:
    assert engine_request_id("abc") == "generate-tokens-abc"


def test_a_sampling_mask_keeps_its_log_probabilities_position_by_position() -> None:
    params = SamplingParams(max_tokens=2, sampling_mask=True)
    rows, values = [[4, 7], [8]], [[-1.0, -0.5], [0.0]]
    answer = choice([7, 8], [-0.5, 0.0], sampling_mask=rows, sampling_mask_logprobs=values)
    (one,) = parse_answer({"choices": [answer]}, params, "here")
    assert one.sampling_mask is not None
    assert (one.sampling_mask.ids, one.sampling_mask.offsets) == ([4, 7, 8], [0, 2, 3])
    assert one.sampling_mask.log_probs == [-1.0, -0.5, 0.0]
    with pytest.raises(EngineError, match="differ in length"):
        parse_answer({"choices": [answer | {"sampling_mask_logprobs": [[-1.0], [0.0]]}]}, params, "here")
