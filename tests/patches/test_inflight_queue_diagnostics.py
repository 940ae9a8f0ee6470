"""``vllm-inflight-queue-diagnostics.patch``: which requests run and wait, and why."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytestmark = pytest.mark.engine


def test_what_waits_and_why(dense: Any) -> None:
    """A paused engine names what it holds back, no more than asked for; a request without its remote KV says so."""

    def inflight(**limits: int) -> dict[str, Any]:
        answer = dense.get("/load", include_inflight="true", **limits)
        assert "inflight" in answer, answer
        (core,) = answer["inflight"]
        return dict(core)

    assert inflight()["pause_state"] == "UNPAUSED"
    assert "inflight" not in dense.get("/load")
    dense.post("/pause", mode="keep")
    with ThreadPoolExecutor(4) as pool:
        sent = [pool.submit(dense.generate, [5 + i] * (i + 3), max_tokens=4, temperature=0) for i in range(3)]
        sent.append(
            pool.submit(
                dense.generate,
                [9] * 40,
                max_tokens=4,
                temperature=0,
                kv_transfer_params={"do_remote_prefill": True, "polls": 10**9},
            )
        )
        while (paused := inflight(max_requests=2))["num_waiting"] < 4:
            pass
        assert paused["pause_state"] == "PAUSED_ALL"
        assert paused["num_running"] == 0
        assert len(paused["waiting"]) == 2
        assert paused["truncated"]
        everything = inflight()
        assert not everything["truncated"]
        assert sorted(request["num_prompt_tokens"] for request in everything["waiting"]) == [3, 4, 5, 40]
        assert {request["status"] for request in everything["waiting"]} == {"WAITING"}

        dense.post("/resume")
        assert [future.result()["usage"]["completion_tokens"] for future in sent[:3]] == [4, 4, 4]
        while (stuck := inflight())["num_running"] or stuck["waiting"][0]["status"] == "WAITING":
            pass
        (request,) = stuck["waiting"]
        assert request["status"] == "WAITING_FOR_REMOTE_KVS"
        assert request["num_output_tokens"] == 0
        assert request["age_s"] > 0
        assert request["request_id"].startswith("generate-tokens-")
        dense.post("/abort_requests", {})
        assert sent[3].result()["choices"][0]["finish_reason"] == "abort"
