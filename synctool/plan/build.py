"""``build_plan``: the one entry point, from a repository and a policy to a plan."""

from __future__ import annotations

from typing import Any

from synctool.cli.terminal import Progress, silent
from synctool.git.repo import Repo
from synctool.plan.identity import identify_all
from synctool.plan.model import Decision, Kind, Plan, PlannedChange
from synctool.plan.span import changes_between


def build_plan(
    repo: Repo,
    policy: Any,
    translator: Any,
    *,
    base: str | None,
    through: str,
    downstream: str = "HEAD",
    progress: Progress = silent,
) -> Plan:
    """Decide what happens to each upstream change of ``base..through``."""
    tip = repo.resolve(through)
    start = repo.resolve(base) if base is not None else None
    changes = identify_all(changes_between(repo, start, tip))
    items = tuple(PlannedChange(change, Decision(Kind.TAKE)) for change in changes)
    return Plan(start, tip, repo.resolve(downstream), items, base_from="--from")
