"""Runs the checks and takes off what the baseline accepts."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from types import ModuleType

from synctool.audit.baseline import Baseline
from synctool.audit.context import Audit
from synctool.audit.finding import Finding, Hit, Rule, gather
from synctool.errors import UsageError

CHECKS = (
    "removed", "signatures", "imports", "flags", "routes", "options", "ci", "shell", "kills", "requirements", "patches", "lint", "markers",
    "paths", "vocabulary", "comments", "parity", "dco",
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    """``findings`` need a person; ``accepted`` are in the baseline; ``unused`` are baseline entries that nothing matches any more."""

    findings: tuple[Finding, ...]
    accepted: tuple[Finding, ...]
    unused: tuple[str, ...]
    rules: tuple[Rule, ...]


def load_check(name: str) -> ModuleType:
    """The module of a check.

    Raises:
        UsageError: there is none of that name.
    """
    if name not in CHECKS:
        raise UsageError(f"there is no check '{name}'", hint=f"the checks are: {', '.join(CHECKS)}")
    return importlib.import_module(f"synctool.audit.checks.{name}")


def run(
    audit: Audit, *, baseline: Baseline | None = None, only: Collection[str] = (), skip: Collection[str] = ()
) -> Result:
    """Run the checks (all of them, or ``only`` some), in order.

    Raises:
        UsageError: a name is not that of a check.
    """
    for name in (*only, *skip):
        load_check(name)
    chosen = [name for name in CHECKS if (not only or name in only) and name not in skip]
    audit.tree.preload(list(audit.tree.entries))
    hits = [hit for name in chosen for hit in load_check(name).check(audit)]
    return divided(hits, chosen, baseline or Baseline())


def divided(hits: Iterable[Hit], checks: Iterable[str], baseline: Baseline) -> Result:
    """The result of checks, with what the baseline accepts set apart."""
    rules = [rule for name in checks for rule in load_check(name).RULES]
    kept, accepted, unused = baseline.divide(hits, {rule.id for rule in rules})
    return Result(tuple(gather(kept)), tuple(gather(accepted)), tuple(unused), tuple(rules))
