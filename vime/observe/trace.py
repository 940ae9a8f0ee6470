"""The life of one sample of each step, as spans in a JSONL file: dealt, generated, scored, trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

FILE = "trace.jsonl"


def life(sample: Any, rollout_id: int, spans: Sequence[tuple[str, float, float]]) -> dict[str, Any]:
    """One record: what the sample is, the versions its tokens were sampled under, and (name, start, end) in seconds since the epoch."""
    return {
        "rollout_id": rollout_id,
        "sample": sample.index,
        "group": sample.group_index,
        "prompt": sample.prompt if isinstance(sample.prompt, str) else sample.prompt[-1:],
        "response": sample.response,
        "status": str(sample.status),
        "reward": sample.reward,
        "tokens": sample.response_length,
        "versions": [[span.version, span.start, span.end] for span in sample.version_spans],
        "spans": [{"name": name, "start": round(start, 4), "end": round(end, 4)} for name, start, end in spans],
        "events": sample.trace,
    }
