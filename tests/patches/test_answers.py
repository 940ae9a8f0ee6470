"""``vllm.patch``: weight versions everywhere, and ends of requests that tell what there is to tell."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytestmark = pytest.mark.engine

PROMPT = [5, 17, 99, 200, 42, 7, 33]
COMPLETION = {"model": "m", "prompt": PROMPT, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
CHAT = {
    "model": "m",
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 6,
    "temperature": 0,
    "ignore_eos": True,
}


def test_weight_version_on_every_answer_and_event(dense: Any) -> None:
    """Plain answers, every event with a choice, and spans on what has finished; also when the version changes on the way."""
    dense.post("/update_weight_version", {"new_version": "seven"})
    tokens = dense.request(PROMPT, max_tokens=6, temperature=0)
    for path, body in (
        ("/v1/completions", COMPLETION),
        ("/v1/chat/completions", CHAT),
        ("/inference/v1/generate", tokens),
    ):
        choice = dense.post(path, body)["choices"][0]
        span = [{"version": "seven", "start": 0, "end": 6}]
        assert (choice["weight_version"], choice["weight_versions"]) == ("seven", span), path
        events = [event["choices"][0] for event in dense.events(path, {**body, "stream": True}) if event["choices"]]
        assert len(events) > 1
        assert [event["weight_version"] for event in events] == ["seven"] * len(events), path
        assert events[-1]["weight_versions"] == span

    stream = dense.events("/v1/completions", {**COMPLETION, "max_tokens": 200, "stream": True})
    assert next(stream)["choices"][0]["weight_version"] == "seven"
    dense.post("/pause", mode="keep")
    dense.post("/update_weight_version", {"new_version": "eight"})
    dense.post("/resume")
    last = [event["choices"][0] for event in stream][-1]
    assert last["weight_version"] == "eight"
    spans = last["weight_versions"]
    assert [span["version"] for span in spans] == ["seven", "eight"]
    assert (spans[0]["start"], spans[0]["end"], spans[1]["end"]) == (0, spans[1]["start"], 200)


def abort_all(server: Any, at_least: int) -> None:
    """Abort until so many requests were there to be aborted."""
    while at_least > 0:
        at_least -= server.post("/abort_requests", {})["aborted"]


def test_abort_before_the_first_token_ends_the_stream_with_an_event(dense: Any) -> None:
    """A queued stream that is aborted says so, on each of the three routes."""
    dense.post("/pause", mode="keep")
    tokens = dense.request(PROMPT, max_tokens=6)
    routes = {"/v1/completions": COMPLETION, "/v1/chat/completions": CHAT, "/inference/v1/generate": tokens}
    with ThreadPoolExecutor(len(routes)) as pool:
        streams = {
            path: pool.submit(lambda path, body: list(dense.events(path, body)), path, {**body, "stream": True})
            for path, body in routes.items()
        }
        abort_all(dense, len(routes))
        ended = {path: [e["choices"][0]["finish_reason"] for e in stream.result()] for path, stream in streams.items()}
    dense.post("/resume")
    assert {path: reasons[-1:] for path, reasons in ended.items()} == {path: ["abort"] for path in routes}


def test_speculative_metrics_survive_a_stop_string_and_an_abort(dense: Any) -> None:
    """Ends that the frontend decides keep the acceptance totals of the steps before."""
    body = {**COMPLETION, "max_tokens": 60}
    whole = dense.post("/v1/completions", body)
    # An end by length has them without the patch.
    assert whole["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0
    text = whole["choices"][0]["text"]
    stopped = dense.post("/v1/completions", {**body, "stop": [text[20:24]]})
    assert stopped["choices"][0]["finish_reason"] == "stop"
    totals = stopped["metrics"]["speculative_decoding"]
    assert totals is not None
    assert 0 < totals["num_draft_tokens"] < whole["metrics"]["speculative_decoding"]["num_draft_tokens"]
    assert sum(totals["acceptance_histogram"]) == totals["num_spec_steps"] > 0

    stream = dense.events(
        "/v1/completions", {**body, "max_tokens": 240, "stream": True, "stream_options": {"include_usage": True}}
    )
    events = [next(stream)]
    dense.post("/pause", mode="keep")
    abort_all(dense, 1)
    events += stream
    dense.post("/resume")
    assert [event["choices"][0]["finish_reason"] for event in events if event["choices"]][-1] == "abort"
    assert events[-1]["metrics"]["speculative_decoding"]["num_spec_steps"] > 0
