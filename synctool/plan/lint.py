"""Checks that what cites upstream changes cites the right ones: a manifest against its range, downstream commits against upstream's history."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from synctool.errors import ConfigError
from synctool.git.commits import Commit
from synctool.plan.manifest import Manifest
from synctool.plan.model import Change, Plan

_CITED = re.compile(r"^Upstream-(Commit|PR): *\S*?#?([0-9a-f]{7,64}|\d{1,9})\s*$", re.MULTILINE | re.IGNORECASE)


def check_manifest(
    manifest: Manifest, changes: Sequence[Change], base: str | None, through: str, *, picks: bool = False
) -> None:
    """Refuse a manifest that belongs to another range.

    Raises:
        ConfigError: its ends differ from the plan's, or an entry names a change outside the range; ``where`` is file:line.
    """
    if manifest.picks != picks:
        kinds = ("single changes", "a range") if manifest.picks else ("a range", "single changes")
        raise ConfigError(f"the manifest is for {kinds[0]}, this plan for {kinds[1]}", where=manifest.file)
    if not picks and not through.startswith(manifest.through):
        raise ConfigError(
            f"the manifest is for a range that ends at {manifest.through[:9]}, not {through[:9]}",
            where=manifest.file,
            hint="name the right one with --manifest, or plan the range that it is for",
        )
    if not picks and manifest.base is not None and not (base or "").startswith(manifest.base):
        raise ConfigError(
            f"the manifest begins at {manifest.base[:9]}, this range at {base[:9] if base else 'the first commit'}",
            where=manifest.file,
            hint=f"plan with --from {manifest.base[:9]}",
        )
    known = [change.oid for change in changes]
    numbers = {change.oid: change.identity.number for change in changes if change.identity}
    for entry in manifest.entries:
        oid = next((oid for oid in known if oid.startswith(entry.commit)), None)
        if oid is None:
            raise ConfigError(
                f"{entry.commit[:9]} is not a first-parent change of the range",
                where=manifest.where(entry.line),
                hint="remove the entry, or correct the id",
            )
        if entry.pr is not None and oid in numbers and numbers[oid] != entry.pr:
            raise ConfigError(
                f"{entry.commit[:9]} came from #{numbers[oid]}, not #{entry.pr}",
                where=manifest.where(entry.line),
                hint="correct the number",
            )


class Citation(NamedTuple):
    """A downstream commit that cites an upstream change which the plan does not take."""

    downstream: str
    cited: str
    problem: str


def check_citations(plan: Plan, commits: Iterable[Commit]) -> list[Citation]:
    """Citations (``Upstream-Commit``, ``Upstream-PR``) in downstream commits of a sync that do not lie in its range, or that it left out."""
    found = []
    taken = {item.change.oid for item in plan.taken()}
    for commit in commits:
        for key, value in _CITED.findall(commit.message):
            item = plan.find(f"#{value}" if key.lower() == "pr" else value)
            name = f"#{value}" if key.lower() == "pr" else value[:9]
            if item is None:
                found.append(Citation(commit.oid, name, "is not a change of the range"))
            elif item.change.oid not in taken:
                found.append(Citation(commit.oid, name, f"is {item.decision.kind} in the plan"))
    return found
