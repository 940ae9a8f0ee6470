"""Buildkite builds as the REST API gives them."""

from __future__ import annotations

import pytest

from synctool.errors import ConfigError
from synctool.evidence.buildkite import is_build, read_build
from synctool.evidence.record import Outcome


def build(state: str = "passed", *jobs: dict, **more):
    return {
        "number": 1454, "state": state, "commit": "a" * 40, "web_url": "https://buildkite.com/o/p/builds/1454",
        "created_at": "2026-11-28T10:00:00.000Z", "finished_at": "2026-11-28T11:00:00.000Z", "jobs": list(jobs), **more,
    }  # fmt: skip


def read(value):
    return read_build(value, name="ci", who="B <b@e>", where="f.json", tree_of=lambda commit: "b" * 40)


def job(name: str, state: str = "passed", **more):
    return {"id": name, "type": "script", "name": name, "state": state, "exit_status": 0, **more}


def test_counts_and_retries():
    record = read(
        build(
            "failed",
            job("a"),
            job("b", "failed", exit_status=-1, retried=True),
            job("b"),
            job("c", "failed", exit_status=1),
            {"id": "w", "type": "waiter", "state": "passed"},
        )
    )
    assert record.outcome is Outcome.FAILED
    assert record.figures == {"jobs": 3, "jobs passed": 2, "jobs failed": 1}
    assert record.details == {"failed job 1": "c"}
    assert [(r.what, r.exit_status, r.reason) for r in record.retries] == [
        ("b", -1, "the agent was lost; no test failed")
    ]
    assert record.run == "#1454"


@pytest.mark.parametrize(
    ("state", "outcome"),
    [("canceled", "cancelled"), ("running", "pending"), ("blocked", "pending"), ("passed", "passed")],
)
def test_states(state, outcome):
    assert read(build(state)).outcome == outcome


@pytest.mark.parametrize(
    "change", [{"state": "odd"}, {"number": "x"}, {"jobs": [1]}, {"created_at": "?", "finished_at": "?"}]
)
def test_other_json(change):
    with pytest.raises(ConfigError, match="not a Buildkite build"):
        read({**build(), **change})


def test_is_build():
    assert is_build(build())
    assert not is_build({"number": 1})
    assert not is_build([])
