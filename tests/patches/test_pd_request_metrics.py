"""``vllm-pd-request-metrics.patch``: timings of a request's remote KV."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.engine

PARTS = ("kv_transfer_wait_ms", "kv_transfer_time_ms", "kv_transfer_resume_ms")


def test_remote_kv_is_timed(dense: Any) -> None:
    """The parts of a request with remote KV add up to its queue time; more polls take longer; a local request has none."""
    # Prompts differ, so that none is found in the prefix cache.
    local = dense.generate([11] * 40, max_tokens=2, temperature=0)["metrics"]
    assert local is not None
    assert local["queue_time_ms"] >= 0
    assert [local[part] for part in PARTS] == [None, None, None]

    times = []
    for polls in (1, 400):
        remote = {"do_remote_prefill": True, "polls": polls}
        answer = dense.generate([12 + polls % 7] * 40, max_tokens=2, temperature=0, kv_transfer_params=remote)
        metrics = answer["metrics"]
        parts = [metrics[part] for part in PARTS]
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(metrics["queue_time_ms"], abs=1e-3)
        times.append(metrics["kv_transfer_time_ms"])
    assert times[1] > times[0] > 0

    body = {
        "model": "m",
        "prompt": [14] * 40,
        "max_tokens": 2,
        "kv_transfer_params": {"do_remote_prefill": True, "polls": 5},
    }
    assert dense.post("/v1/completions", body)["metrics"]["kv_transfer_time_ms"] > 0
    streamed = {**body, "prompt": [15] * 40, "stream": True, "stream_options": {"include_usage": True}}
    assert list(dense.events("/v1/completions", streamed))[-1]["metrics"]["kv_transfer_time_ms"] > 0
    options = {"stream": True, "stream_options": {"include_usage": True}}
    body = dense.request([16] * 40, max_tokens=2, kv_transfer_params=body["kv_transfer_params"], **options)
    assert list(dense.events("/inference/v1/generate", body))[-1]["metrics"]["kv_transfer_time_ms"] > 0
