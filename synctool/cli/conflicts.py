"""``vime-sync conflicts``: every conflict of the running sync in one list, and their files for an editor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from synctool.cli.app import Context, verb
from synctool.cli.report import Report
from synctool.cli.running import conflict_json, exit_for, next_step, running
from synctool.errors import Refused, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from synctool.git.repo import Repo
    from synctool.mirror.session import Session


@click.command(name="conflicts")
@click.option("--all", "everything", is_flag=True, help="Also those that are resolved.")
@click.option(
    "--write",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write the open files with their markers into this folder.",
)
@click.option("--dry-run", is_flag=True, help="With --write: say what would be written.")
@verb
def command(context: Context, everything: bool, folder: Path | None, dry_run: bool) -> Report:
    """List the conflicts of the running sync. Exits with 1 while some are open.

    To resolve in an editor: write the files with --write DIR, edit them, then 'vime-sync take edited --from DIR'. Or check out the sync's branch, edit and
    commit there, and 'vime-sync continue'.
    """
    now = running(context.repo())
    session = now.session
    shown = [c for c in session.conflicts if everything or not session.is_resolved(c)]
    rows = [conflict_json(session, conflict) for conflict in shown]
    written = write_out(now.repo, session, folder, dry_run=dry_run) if folder else []

    def render(console: Console) -> None:
        from rich.table import Table

        if not rows:
            return
        table = Table("file", "kind", "hunks", "from", "proposals", "state")
        for row in rows:
            kinds = sorted({kind for found in row["proposals"].values() for kind in found})
            chosen = f"{len(row['chosen_hunks'])} of {row['hunks']} hunks" if row["chosen_hunks"] else "open"
            table.add_row(
                row["path"],
                row["kind"],
                str(row["hunks"] or ""),
                " ".join(row["changes"][:4]),
                " ".join(kinds),
                row["how"] if row["resolved"] else chosen,
            )
        console.print(table)

    summary = [f"{len(session.open_conflicts())} of {len(session.conflicts)} files open"]
    verb_word = "would write" if dry_run else "wrote"
    summary += [f"{verb_word} {path}" for path in written]
    data = {"conflicts": rows, "open": len(session.open_conflicts()), "written": written}
    return Report("conflicts", data, summary, render, [next_step(session)], exit_for(session))


def write_out(repo: Repo, session: Session, folder: Path, *, dry_run: bool) -> list[str]:
    """Write each open conflict's text below ``folder``; returns the files.

    Raises:
        UsageError: a file is there already with other content (it may hold someone's work).
        Refused: a path would leave the folder.
    """
    from synctool.mirror.steps import outcome

    files: dict[Path, bytes] = {}
    root = folder.resolve()
    for conflict in session.open_conflicts():
        entry = outcome(repo, conflict, session.resolutions.get(conflict.path))
        if entry is None or not entry.mode.startswith("100"):
            continue
        target = root / conflict.path
        if root not in target.resolve().parents:
            raise Refused(f"{conflict.path} would be written outside {folder}", hint="use an empty folder")
        data = repo.objects.read(entry.oid, "blob")
        if target.exists() and target.read_bytes() != data:
            raise UsageError(
                "the file exists with other content",
                where=str(target),
                hint="choose an empty folder, or remove the file",
            )
        files[target] = data
    if not dry_run:
        for target, data in files.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_name(target.name + ".partial")
            temporary.write_bytes(data)
            temporary.replace(target)
    return [str(folder / target.relative_to(root)) for target in files]
