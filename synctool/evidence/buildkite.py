"""Reads a Buildkite build, as its REST API gives one build (``GET .../builds/N``), into a record."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

from synctool.errors import ConfigError
from synctool.evidence.record import Outcome, Record, Retry, Source
from synctool.policy.model import EvidenceKind
from synctool.redact import redact

_STATES = {
    "passed": Outcome.PASSED,
    "failed": Outcome.FAILED,
    "failing": Outcome.FAILED,
    "canceled": Outcome.CANCELLED,
    "canceling": Outcome.CANCELLED,
    "skipped": Outcome.CANCELLED,
    "not_run": Outcome.CANCELLED,
    "creating": Outcome.PENDING,
    "scheduled": Outcome.PENDING,
    "running": Outcome.PENDING,
    "blocked": Outcome.PENDING,
}
#: A job that ended so was lost with its agent: Buildkite gives -1 when no exit status ever came.
LOST_STATUS = -1


def is_build(value: Any) -> bool:
    """Whether JSON is one build."""
    return isinstance(value, dict) and {"number", "state", "commit", "jobs"} <= value.keys()


def read_build(
    value: dict[str, Any],
    *,
    name: str,
    who: str,
    where: str,
    tree_of: Callable[[str], str | None],
    platform: str = "",
    sync: str = "",
) -> Record:
    """A record of the build. ``tree_of`` gives the tree of a commit, None when it is not here.

    Jobs that were made again count once, by their last attempt; each lost one becomes a disclosed retry.

    Raises:
        ConfigError: a field is missing or its state is unknown.
    """
    try:
        outcome = _STATES[value["state"]]
        commit, number = str(value["commit"]), int(value["number"])
        when = _time(value.get("finished_at") or value.get("started_at") or value["created_at"])
        jobs = [job for job in value["jobs"] if job.get("type", "script") == "script"]
        last = [job for job in jobs if not job.get("retried")]
        retries = [
            Retry(
                what=str(job.get("name") or job.get("step_key") or job["id"]),
                exit_status=job.get("exit_status"),
                reason=_why(job),
            )
            for job in jobs
            if job.get("retried")
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"not a Buildkite build: {type(error).__name__} at {error}",
            where=where,
            hint="give the answer of GET /v2/organizations/ORG/pipelines/PIPELINE/builds/NUMBER",
        ) from None
    counts = {
        "jobs": len(last),
        "jobs passed": sum(job.get("state") == "passed" for job in last),
        "jobs failed": sum(job.get("state") in ("failed", "timed_out", "broken") for job in last),
    }
    return Record(
        head=commit if len(commit) in (40, 64) else None,
        tree=tree_of(commit),
        sync=sync,
        when=when,
        by=who,
        name=name,
        kind=EvidenceKind.CI,
        outcome=outcome,
        source=Source.IMPORTED,
        figures=counts,
        details={
            f"failed job {n}": redact(str(job.get("name") or job.get("id")))
            for n, job in enumerate((j for j in last if j.get("state") in ("failed", "timed_out", "broken")), 1)
        },
        retries=tuple(retries),
        run=f"#{number}",
        url=redact(str(value.get("web_url") or "")),
        platform=platform,
    )


def _why(job: dict[str, Any]) -> str:
    if job.get("exit_status") == LOST_STATUS or job.get("signal_reason") in ("agent_stop", "process_run_error"):
        return "the agent was lost; no test failed"
    return f"made again after it {job.get('state', 'ended')}"


def _time(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(datetime.UTC)
