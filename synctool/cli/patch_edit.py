"""``vime-sync patch edit``."""

from __future__ import annotations

from pathlib import Path

import click

from synctool.cli.app import Context, verb
from synctool.cli.patch_common import Where, stack_options
from synctool.cli.report import Report


@click.command(name="edit")
@click.argument("name")
@click.argument("folder", type=click.Path(path_type=Path))
@verb
@stack_options
@click.option("--dry-run", is_flag=True, help="Say what would be laid out, write nothing.")
def command(context: Context, where: Where, name: str, folder: Path, dry_run: bool) -> Report:
    """Lay out in FOLDER the source as patch NAME leaves it, to be edited and refreshed.

    A patch that does not apply after a rebase is laid out with the conflicts that the rebase recorded, markers and all.
    """
    from synctool.errors import SyncError
    from synctool.git.tree import Tree
    from synctool.patches.apply import apply_patch
    from synctool.patches.rebased_folder import read_conflicts
    from synctool.patches.stack import apply_stack
    from synctool.patches.workspace import Note, lay_out

    stack = where.load()
    patch = stack.patch(name)
    source = where.open(stack.pin)
    earlier = stack.patches[: stack.patches.index(patch)]
    steps = list(apply_stack(source.tree, earlier, stack.pin.allowed))
    before = steps[-1].after if steps else source.tree_oid
    tree, overlay = Tree(source.repo.objects, before), read_conflicts(stack.folder, patch)
    if not overlay:
        try:
            tree, _ = apply_patch(
                tree, patch.text, patch.where, allowed=stack.pin.allowed, keep_context=patch.keep_context
            )
        except SyncError as error:
            error.hint = f"{error.hint or ''}; carry the stack over with 'vime-sync patch rebase' to have its conflicts laid out".lstrip(
                "; "
            )
            raise
    data = {
        "patch": patch.name,
        "folder": str(folder),
        "before": before,
        "conflicts": sorted(overlay),
        "dry_run": dry_run,
    }
    if dry_run:
        return Report("patch edit", data, [f"would lay out {patch.name} in {folder}", "dry run: nothing was written"])
    count = lay_out(tree, folder, Note(patch.name, stack.pin.label, before, patch.sha256), overlay)
    summary = [f"{folder}: {count:,} files; edit them, then: vime-sync patch refresh {patch.name} --from {folder}"]
    summary += [f"  has conflict markers: {path}" for path, text in sorted(overlay.items()) if b"<<<<<<< " in text]
    return Report("patch edit", data, summary)
