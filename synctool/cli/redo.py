"""``vime-sync redo``: does an undone step again."""

from __future__ import annotations

import click

from synctool.cli.app import Context, verb
from synctool.cli.report import Report


@click.command(name="redo")
@click.option("--dry-run", is_flag=True, help="Say which step it is, and change nothing.")
@verb
def command(context: Context, dry_run: bool) -> Report:
    """Do a step again that was undone."""
    from synctool.mirror import store

    repo = context.repo()
    with store.locked(repo):
        state = store.redo(repo, dry_run=dry_run)
    return Report(
        "redo", {"step": state.step, "dry_run": dry_run}, [f"{'would redo' if dry_run else 'redone'}: {state.step}"]
    )
