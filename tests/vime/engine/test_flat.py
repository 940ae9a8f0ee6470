"""Short answers hold what long ones do, and what they cannot hold is answered at length."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime.engine import flat, wire
from vime.errors import EngineError
from vime.rollout.client import SamplingParams

PARAMS = SamplingParams(max_tokens=5, n=2)


def result(**changes: Any) -> Any:
    """vLLM's RequestOutput. Importing vLLM takes seconds, and all workers collect this file."""
    from vllm.logprobs import FlatLogprobs, Logprob
    from vllm.outputs import CompletionOutput, RequestOutput, WeightVersionSpan

    log_probs = FlatLogprobs()
    log_probs.append({7: Logprob(-0.5, 1, None)})
    log_probs.append({9: Logprob(float("-inf"), 2, None)})
    outputs = [
        CompletionOutput(
            index=i, text="", token_ids=[7, 9], cumulative_logprob=None, logprobs=log_probs, finish_reason="length",
            weight_versions=[WeightVersionSpan("3", 0, 2)], **changes,
        )
        for i in range(2)
    ]  # fmt: skip
    return RequestOutput("id", "", [1, 2, 3], None, outputs, True, num_cached_tokens=1)


def test_a_short_answer_is_read_like_a_long_one() -> None:
    body = flat.short_answer(result(), "id", cached=True)
    first, second = wire.parse_answer(json.loads(json.dumps(body)), PARAMS, "here")
    assert (first.token_ids, first.logprobs, first.finish_reason) == ([7, 9], [-0.5, -9999.0], "length")
    assert [(span.version, span.start, span.end) for span in second.weight_versions] == [("3", 0, 2)]
    assert first.meta == {"prompt_tokens": 3.0, "cached_tokens": 1.0}


@pytest.mark.parametrize("changes", [{"routed_experts": [[1]]}, {"sampling_mask": object()}])
def test_what_a_short_answer_cannot_hold_is_answered_at_length(changes: dict[str, Any]) -> None:
    assert flat.short_answer(result(**changes), "id", cached=True) is None


def test_further_candidates_and_errors_are_answered_at_length() -> None:
    from vllm.logprobs import FlatLogprobs, Logprob

    many = result()
    many.outputs[0].logprobs = FlatLogprobs()
    many.outputs[0].logprobs.append({7: Logprob(-0.5, 1, None), 8: Logprob(-1.0, 2, None)})
    assert flat.short_answer(many, "id", cached=True) is None
    failed = result()
    failed.outputs[0].finish_reason = "error"
    assert flat.short_answer(failed, "id", cached=True) is None


def test_the_server_prints_short_answers_when_it_is_asked_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest, GenerateResponseBase
    from vllm.entrypoints.scale_out.token_in_token_out.serving import ServingTokens

    monkeypatch.setattr(ServingTokens, "serve_tokens_full_generator", ServingTokens.serve_tokens_full_generator)
    flat.install()
    once = ServingTokens.serve_tokens_full_generator
    flat.install()
    assert ServingTokens.serve_tokens_full_generator is once

    async def results() -> Any:
        yield result()

    server = SimpleNamespace(enable_prompt_tokens_details=True)
    request = GenerateRequest(**wire.request_body([1, 2, 3], PARAMS))
    assert request.sampling_params.flat_logprobs
    response = asyncio.run(once(server, request, results(), "id", "model", None))
    assert isinstance(response, GenerateResponseBase)
    assert wire.parse_answer(response.model_dump(), PARAMS, "here")[1].logprobs == [-0.5, -9999.0]


def test_only_plain_requests_ask_for_short_answers() -> None:
    for params in (SamplingParams(max_tokens=5, logprobs=4), SamplingParams(max_tokens=5, sampling_mask=True)):
        assert "flat_logprobs" not in wire.request_body([1], params)["sampling_params"]


def test_too_few_log_probs_are_refused() -> None:
    body = flat.short_answer(result(), "id", cached=True)
    assert body is not None
    body["choices"][0]["logprobs"]["flat"] = flat.packed([-0.5], "<f4")
    with pytest.raises(EngineError, match="2 tokens came with 1 log-prob"):
        wire.parse_answer(body, PARAMS, "here")
    for damaged in ("AAA", "!!!!", "AAAA"):
        body["choices"][0]["token_ids"] = damaged
        with pytest.raises(EngineError, match="cannot be read"):
            wire.parse_answer(body, PARAMS, "here")


@given(st.lists(st.integers(0, 2**31 - 1), max_size=20), st.lists(st.floats(-1e4, 0, width=32), max_size=20))
def test_packed_numbers_come_back_to_the_bit(tokens: list[int], values: list[float]) -> None:
    assert flat.unpacked(flat.packed(tokens, "<i4"), "<i4") == tokens
    assert flat.unpacked(flat.packed(values, "<f4"), "<f4") == values


@pytest.mark.engine
def test_a_real_server_says_the_same_in_both_forms(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from vime.engine import client

    params = SamplingParams(max_tokens=12, n=3, seed=5)

    def answers() -> list[Any]:
        prompt = [5, 14, 15, 16, 17, 18, 40]
        return list(served.ask(lambda c: c.generate_group(prompt, params, session_id=None, timeout=120)))

    short = answers()

    def at_length(*given: Any) -> dict[str, Any]:
        body = wire.request_body(*given)
        del body["sampling_params"]["flat_logprobs"]
        return body

    monkeypatch.setattr(client, "request_body", at_length)
    for one, other in zip(short, answers(), strict=True):
        assert (one.token_ids, one.finish_reason, one.weight_versions) == (
            other.token_ids,
            other.finish_reason,
            other.weight_versions,
        )
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-6)
