"""``vime-sync policy``: check the policy, export its schema."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from synctool.cli.app import Context, verb
from synctool.cli.inputs import Inputs, load, policy_option
from synctool.cli.report import Report
from synctool.cli.terminal import progress
from synctool.errors import Exit, RepositoryError

if TYPE_CHECKING:
    from rich.console import Console

    from synctool.policy.lint import Evidence, Finding


@click.group(name="policy")
def command() -> None:
    """Check vime-sync.toml, or export its schema."""


@command.command(name="check")
@policy_option
@click.option("--upstream", "revision", help="Check against this upstream commit.  [default: what was fetched last]")
@click.option("--downstream", default="HEAD", show_default=True, help="Check against this downstream commit.")
@click.option("--alone", is_flag=True, help="Look at the file only, not at the repositories.")
@verb
def check(context: Context, policy_file: Path | None, revision: str | None, downstream: str, alone: bool) -> Report:
    """Report rules that match nothing any more, hide or contradict one another, collide or ran out.

    Exit code 1 when there is an error or a warning; notes are for information.
    """
    from synctool.policy.lint import check_against, check_alone

    inputs = load(context.repo(), policy_file)
    findings = check_alone(inputs.policy, datetime.date.today())
    messages = []
    if not alone:
        try:
            tip = inputs.repo.resolve(revision) if revision else inputs.upstream_tip()
        except RepositoryError as error:
            if revision:
                raise
            messages.append(f"only the file was checked: {error.title} ({error.hint})")
        else:
            with progress("checking the policy against both trees", quiet=context.quiet):
                findings += check_against(inputs.policy, inputs.translator, _gather(inputs, tip, downstream))
    findings.sort(key=lambda found: (("error", "warning", "note").index(found.level), _line(found)))
    counts = Counter(found.level for found in findings)
    data = {"file": inputs.policy.file, "findings": [asdict(found) for found in findings], "counts": dict(counts)}
    rules = sum(1 for _ in inputs.policy.rules())
    told = ", ".join(f"{count} {level}{'s' if count > 1 else ''}" for level, count in counts.items()) or "no findings"
    return Report(
        "policy check",
        data,
        summary=[f"{inputs.policy.file}: {rules} rules, {told}"],
        render=lambda console: _render(console, findings),
        messages=messages,
        exit_code=Exit.ATTENTION if counts["error"] or counts["warning"] else Exit.OK,
    )


@command.command(name="schema")
@verb
def schema(context: Context) -> Report:
    """Print the JSON Schema of vime-sync.toml, for editors."""
    from synctool.policy.model import json_schema

    value = json_schema()
    return Report("policy schema", {"schema": value}, summary=[json.dumps(value, indent=1, ensure_ascii=False)])


def _line(found: Finding) -> int:
    number = found.where.rpartition(":")[2]
    return int(number) if number.isdigit() else 0


def _render(console: Console, findings: list[Finding]) -> None:
    style = {"error": "bold red", "warning": "yellow", "note": "dim"}
    for found in findings:
        console.print(f"{found.where}: ", end="", markup=False, highlight=False, soft_wrap=True)
        console.print(found.level, style=style[found.level], end="")
        console.print(f" [{found.check}] {found.message}", markup=False, highlight=False, soft_wrap=True)
        console.print(f"    fix: {found.fix}", markup=False, highlight=False, soft_wrap=True)


def _gather(inputs: Inputs, tip: str, downstream: str) -> Evidence:
    """What the linter needs to know of both repositories."""
    from synctool.git.commits import first_parent_range
    from synctool.git.tree import SUBMODULE, SYMLINK
    from synctool.plan.identity import identify
    from synctool.policy.lint import Evidence

    repo, policy = inputs.repo, inputs.policy
    entries = {path: entry for path, entry in repo.tree(tip).items() if entry.mode not in (SYMLINK, SUBMODULE)}
    blobs = repo.objects.read_many(entry.oid for entry in entries.values())
    upstream = {path: blobs[entry.oid] for path, entry in entries.items() if entry.oid in blobs}
    ours = repo.resolve(downstream)
    once: set[str] = set()
    changes = None
    base = policy.upstream.baseline
    if base is not None:
        base = repo.resolve(base)
        once = _paths_since(inputs, base, tip) | _paths_since(inputs, base, ours)
        changes = tuple(
            (commit.oid, found.number if (found := identify(commit)) is not None else None)
            for commit in first_parent_range(repo, base, tip)
        )
    return Evidence(upstream, frozenset(path for path, _ in repo.tree(ours).items()), frozenset(once), changes)


def _paths_since(inputs: Inputs, base: str, tip: str) -> set[str]:
    """Every path that some commit since the baseline touched, and the baseline's own."""
    repo = inputs.repo
    touched = repo.run("log", "--format=", "--name-only", "--no-renames", "-z", "-m", f"{base}..{tip}", "--").stdout
    paths = {field.decode("utf-8", "surrogateescape").strip("\n") for field in touched.split(b"\0")}
    return {path for path in paths if path} | {path for path, _ in repo.tree(base).items()}
