"""``vime-sync evidence check``."""

from __future__ import annotations

from pathlib import Path

import click

from synctool.cli.app import Context, verb
from synctool.cli.evidence_common import ledger, options, row_json, sync_of, sync_option, told
from synctool.cli.inputs import policy_option
from synctool.cli.report import Report
from synctool.errors import Exit, UsageError


@click.command(name="check")
@policy_option
@options(
    click.option("--head", default="HEAD", show_default=True, help="The commit that must be covered."),
    click.option("--require", "names", multiple=True, metavar="NAME", help="This too must be green. Repeatable."),
    click.option("--manifest", type=click.Path(path_type=Path, dir_okay=False), help="Write what counts into this manifest's [[evidence]]."),
    sync_option,
    click.option("--dry-run", is_flag=True, help="With --manifest: write nothing."),
)  # fmt: skip
@verb
def command(
    context: Context,
    policy_file: Path | None,
    head: str,
    names: tuple[str, ...],
    manifest: Path | None,
    sync: str | None,
    dry_run: bool,
) -> Report:
    """Fail unless everything that the policy requires ([[require]]) is green for a head, and nothing that counts has failed.

    Exit code 1: something is missing, pending or failed; each is named.
    """
    from synctool.evidence.record import Outcome

    repo = context.repo()
    seen, policy = ledger(repo, policy_file, head, sync_of(repo, sync))
    wanted = dict.fromkeys([rule.name for rule in policy.required] + list(names))
    missing = [name for name in wanted if not seen.green(name)]
    failed = [row for row in seen.counting() if row.record.outcome is Outcome.FAILED]
    green = [row for row in seen.rows if row.green]
    if not wanted and not green:
        raise UsageError(
            "nothing is required and nothing is recorded, so there is nothing to check",
            hint="add [[require]] to the policy, or give --require NAME",
        )
    lines = [f"green    {told(row)}" for row in green]
    lines += [f"failed   {told(row)}" for row in failed]
    lines += [
        f"missing  {name}: {_why(name, [told(r) for r in seen.rows if r.record.name == name])}" for name in missing
    ]
    data = {
        "head": seen.target.head,
        "tree": seen.target.tree,
        "required": list(wanted),
        "missing": missing,
        "failed": [row_json(row) for row in failed],
        "green": [row_json(row) for row in green],
    }
    messages = []
    if manifest is not None:
        from synctool.evidence.slots import with_evidence
        from synctool.whole_file import write_whole

        old = manifest.read_text(encoding="utf-8") if manifest.is_file() else None
        if old is None:
            raise UsageError("no such manifest", where=str(manifest))
        text = with_evidence(old, seen, str(manifest))
        if text != old and not dry_run:
            write_whole(manifest, text)
        word = "unchanged" if text == old else "dry run: would update" if dry_run else "updated"
        messages.append(f"{word}: {manifest}")
    bad = bool(missing or failed)
    lines.append(f"{len(green)} green, {len(failed)} failed, {len(missing)} missing for {seen.target.head[:12]}")
    return Report("evidence check", data, lines, messages=messages, exit_code=Exit.ATTENTION if bad else Exit.OK)


def _why(name: str, rows: list[str]) -> str:
    return f"the last one is {rows[-1]}" if rows else "no record of it"
