"""``vime-sync evidence list``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from synctool.cli.app import Context, verb
from synctool.cli.evidence_common import ledger, options, row_json, sync_of, sync_option
from synctool.cli.inputs import policy_option
from synctool.cli.report import Report

if TYPE_CHECKING:
    from rich.console import Console


@click.command(name="list")
@policy_option
@options(
    click.option("--head", default="HEAD", show_default=True, help="The commit to see the records from."),
    sync_option,
    click.option("--all", "everything", is_flag=True, help="Also what was recorded for other syncs."),
)
@verb
def command(context: Context, policy_file: Path | None, head: str, sync: str | None, everything: bool) -> Report:
    """List records and statements, and for each record whether it holds for a head.

    current: on this very head. carried: its tree is equal. narrowed: only neutral paths differ. parent: of what this sync started from. stale: other
    paths differ. unknown: its commit is not in this repository.
    """
    repo = context.repo()
    seen, _ = ledger(repo, policy_file, head, None if everything else sync_of(repo, sync))
    data = {
        "head": seen.target.head,
        "tree": seen.target.tree,
        "records": [row_json(row) for row in seen.rows],
        "statements": [statement.to_json() for statement in seen.statements],
    }

    def render(console: Console) -> None:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("id", "name", "outcome", "figures", "standing", "head", "tree"):
            table.add_column(title, no_wrap=title in ("id", "head", "tree"))
        for row in seen.rows:
            record = row.record
            figures = ", ".join(f"{value:,} {key}" for key, value in record.figures.items() if value)
            standing = f"{row.standing}{', replaced' if row.replaced_by else ''}"
            standing += f" ({len(row.paths)} paths)" if row.paths else ""
            cells = (record.id, f"{record.name} {record.run}".strip(), str(record.outcome), figures, standing)
            table.add_row(*map(Text, cells), (record.head or "")[:9], (record.tree or "")[:9])
        console.print(table)
        for statement in seen.statements:
            line = f"{statement.id}  {statement.topic} {statement.target}: {statement.text}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)

    green = sum(row.green for row in seen.rows)
    summary = [
        f"{len(seen.rows)} records, {green} of them green for {seen.target.head[:12]} (tree {seen.target.tree[:12]})"
    ]
    return Report("evidence list", data, summary, render=render if seen.rows or seen.statements else None)
