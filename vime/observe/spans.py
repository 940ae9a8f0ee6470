"""Where the time of a run went, sample by sample: a record a step beside the driver's own trace, and both as a Perfetto trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from vime.observe import trace
from vime.observe.metrics import read_lines

FILE = "spans.jsonl"
_DRIVER, _SAMPLES = 1, 2
_MICRO = 1e6


def record(rollout_id: int, samples: Sequence[Any], most: int) -> dict[str, Any]:
    """The spans of the first `most` samples of a step: what happened to each, with start and end in seconds since the epoch."""
    return {
        "rollout_id": rollout_id,
        "samples": [
            {
                "index": sample.index,
                "group": sample.group_index,
                "tokens": sample.response_length,
                "status": str(sample.status),
                "reward": sample.reward,
                "versions": [[span.version, span.start, span.end] for span in sample.version_spans],
                "spans": [
                    {"name": one["name"], "start": round(one["start"], 4), "end": round(one["end"], 4)}
                    for one in sample.trace
                    if "start" in one
                ],
            }
            for sample in samples[:most]
        ],
    }


def perfetto(directory: Path) -> dict[str, Any]:
    """The run as Chrome's trace event format, which ui.perfetto.dev opens: the driver's phases in one track, a track for each lane of samples.

    Samples that run at the same time lie in different lanes, so that concurrency is what one sees; a step's are packed anew.
    """
    events: list[dict[str, Any]] = [
        _name(_DRIVER, "driver"),
        _name(_SAMPLES, "samples in flight"),
    ]
    for step in read_lines(directory / trace.FILE):
        for span in step["spans"]:
            events.append(_complete(_DRIVER, 0, span["name"], span["start"], span["end"], {"step": step["rollout_id"]}))
    for step in read_lines(directory / FILE):
        for sample, lane in _lanes(step["samples"]):
            about = {key: sample[key] for key in ("index", "group", "tokens", "status", "reward", "versions")}
            for span in sample["spans"]:
                events.append(
                    _complete(
                        _SAMPLES, lane, span["name"], span["start"], span["end"], about | {"step": step["rollout_id"]}
                    )
                )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _lanes(samples: Iterable[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], int]]:
    """Each sample with the first lane that is free when it begins."""
    free: list[float] = []
    for sample in sorted((one for one in samples if one["spans"]), key=lambda one: one["spans"][0]["start"]):
        start, end = sample["spans"][0]["start"], max(span["end"] for span in sample["spans"])
        lane = next((number for number, until in enumerate(free) if until <= start), len(free))
        free[lane : lane + 1] = [end]
        yield sample, lane


def _complete(process: int, track: int, name: str, start: float, end: float, about: dict[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X", "pid": process, "tid": track, "name": name, "ts": round(start * _MICRO), "dur": max(round((end - start) * _MICRO), 1),
        "args": about,
    }  # fmt: skip


def _name(process: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}}
