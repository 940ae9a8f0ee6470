"""``vime-sync evidence run``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from synctool.cli.app import Context, verb
from synctool.cli.evidence_common import (
    artifact_option,
    dry_run_option,
    kind_option,
    name_option,
    options,
    parse_artifacts,
    person,
    platform_option,
    signed,
    stack_facts,
    stack_option,
    store,
    sync_of,
    sync_option,
)  # fmt: skip
from synctool.cli.report import Report
from synctool.errors import Exit


@click.command(name="run")
@options(
    name_option,
    kind_option,
    click.option("--junit", type=click.Path(path_type=Path), help="The JUnit file that the command writes, from the top of the repository."),
    artifact_option,
    platform_option,
    stack_option,
    click.option("--env", "variables", multiple=True, metavar="NAME", help="Record this variable too (redacted). Repeatable."),
    click.option("--retries", type=click.IntRange(0, 5), default=0, show_default=True, help="Make a lost attempt again so often; a failed one never."),
    click.option("--lost-exit", "lost", multiple=True, type=int, metavar="N", help="This exit status too means that the agent was lost. Repeatable."),
    click.option("--timeout", type=click.FloatRange(min=0, min_open=True), help="End it after so many seconds; that is a failure."),
    click.option("--note", default="", help="A remark for the record."),
    sync_option,
    dry_run_option,
)  # fmt: skip
@click.argument("words", nargs=-1, required=True, metavar="-- COMMAND...")
@verb
def command(
    context: Context,
    name: str,
    kind: str,
    junit: Path | None,
    artifacts: tuple[str, ...],
    platform: str,
    with_stack: bool,
    variables: tuple[str, ...],
    retries: int,
    lost: tuple[int, ...],
    timeout: float | None,
    note: str,
    sync: str | None,
    dry_run: bool,
    words: tuple[str, ...],
) -> Report:
    """Run a command at the top of the checked-out work tree and record what it showed.

    The work tree must equal its head: evidence names a tree. Figures come from --junit, or from the JSON that our own verbs print with --json. What the
    command prints goes to stderr. Exit code 1: it did not pass (that is recorded too).
    """
    from synctool.evidence.record import Outcome, Record
    from synctool.evidence.run import LOST, place_of, run
    from synctool.evidence.surroundings import redact_command
    from synctool.policy.model import EvidenceKind

    repo = context.repo()
    here = place_of(repo)
    found = parse_artifacts(artifacts)
    stack = stack_facts(repo, here.head, with_stack)
    if dry_run:
        shown = " ".join(redact_command(words))
        data = {"head": here.head, "tree": here.tree, "command": list(redact_command(words)), "record": None}
        return Report("evidence run", data, [f"would run on tree {here.tree[:12]} (head {here.head[:12]}): {shown}"])
    assert repo.work_tree is not None
    record: Record = run(
        repo,
        words,
        name=name,
        kind=EvidenceKind(kind),
        who=signed(person(repo)),
        sync=sync_of(repo, sync),
        junit=repo.work_tree / junit if junit else None,
        artifacts=found,
        platform=platform,
        variables=variables,
        retries=retries,
        lost=(*LOST, *lost),
        timeout=timeout,
        note=note,
        echo=(lambda text: None) if context.quiet and not context.as_json else sys.stderr.write,
        **stack,
    )
    _, messages = store(repo, [record], reason=f"{record.name}: {record.outcome}", dry_run=False)
    figures = ", ".join(f"{value:,} {key}" for key, value in record.figures.items() if value)
    lines = [
        f"{record.name}: {record.outcome}{f' ({figures})' if figures else ''} on tree {here.tree[:12]}, {record.seconds} s"
    ]
    lines += [f"made again after exit status {one.exit_status}: {one.reason}" for one in record.retries]
    lines += [record.note] if record.note else []
    lines.append(f"recorded as {record.id}")
    code = Exit.OK if record.outcome is Outcome.PASSED else Exit.ATTENTION
    return Report("evidence run", {"record": record.to_json()}, lines, messages=messages, exit_code=code)
