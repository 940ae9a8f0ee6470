"""``vime-sync undo``: takes back the last step."""

from __future__ import annotations

import click

from synctool.cli.app import Context, verb
from synctool.cli.report import Report


@click.command(name="undo")
@click.option("--dry-run", is_flag=True, help="Say which step it is, and change nothing.")
@verb
def command(context: Context, dry_run: bool) -> Report:
    """Take back the last step of the sync: refs return to exactly where they were."""
    from synctool.mirror import store

    repo = context.repo()
    with store.locked(repo):
        if dry_run:
            state = store.require(repo, running=False)
            return Report("undo", {"step": state.step, "dry_run": True}, [f"would undo: {state.step}"])
        left, reached = store.undo(repo)
    summary = [f"undone: {left.step}"]
    messages = ["'vime-sync redo' does it again"]
    if reached is None:
        messages.insert(0, "the sync is gone, as before it began")
    return Report(
        "undo",
        {"step": left.step, "now": reached.step if reached else None, "dry_run": False},
        summary,
        messages=messages,
    )
