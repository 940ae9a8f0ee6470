"""``vime-sync patch rebase``."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import click

from synctool.cli.app import Context, verb
from synctool.cli.patch_common import Where, stack_options
from synctool.cli.report import Report
from synctool.errors import Exit, NothingToDo


@click.command(name="rebase")
@verb
@stack_options
@click.option("--to", "version", required=True, help="The release to carry the stack to.")
@click.option("--new-source", help="An archive of that release, instead of the package index.")
@click.option("--dry-run", is_flag=True, help="Classify and show the resulting tree; write nothing.")
def command(context: Context, where: Where, version: str, new_source: str | None, dry_run: bool) -> Report:
    """Carry the stack to another release, beside the old stack, which stays as it is.

    Goes on past failures and gives each patch a class: applies, offset, drift (merged three-way: a proposal), landed (with proof), half-landed
    (reduced to the rest), conflict (laid out for 'vime-sync patch edit'), dropped. Exit code 1: somebody must look at a patch.
    """
    from synctool.patches.rebase import rebase_stack
    from synctool.patches.rebased_folder import rebase_data, write_rebased
    from synctool.patches.release import open_release
    from synctool.patches.store import joined

    stack = where.load()
    if not stack.patches:
        raise NothingToDo("the series is empty", where=str(stack.folder))
    old = where.open(stack.pin)
    target = stack.folder.parent / version
    with tempfile.TemporaryDirectory(prefix="vime-sync-") as scratch:
        new = open_release(
            stack.pin, version, target, Path(scratch), source=new_source, offline=where.offline, quiet=where.quiet
        )
    with joined(old, new) as repo:
        result = rebase_stack(repo, stack, old.tree_oid, new.tree_oid)
    counts: dict[str, int] = {}
    for patch in result.patches:
        counts[str(patch.fate)] = counts.get(str(patch.fate), 0) + 1
    data: dict[str, Any] = {
        "from": stack.pin.label,
        "to": new.pin.label,
        "archive_sha256": new.pin.archive.sha256,
        "patches": rebase_data(result),
        "counts": counts,
        "tree": result.tree,
        "renames": result.renames,
        "folder": None if dry_run else str(target),
    }
    summary = []
    for patch in result.patches:
        summary.append(f"{patch.fate:>12}  {patch.name}" + ("  (look at it)" if patch.review else ""))
        summary += [f"              {reason}" for reason in patch.reasons[:12]]
    summary.append(
        ", ".join(f"{count} {name}" for name, count in counts.items()) + f"; tree {result.tree} (without conflicts)"
    )
    if dry_run:
        summary.append("dry run: nothing was written")
    else:
        write_rebased(target, stack, new.pin, result)
        summary.append(f"written: {target}; go on with 'vime-sync patch verify --stack {target}'")
    return Report("patch rebase", data, summary, exit_code=Exit.ATTENTION if result.needs_person else Exit.OK)
