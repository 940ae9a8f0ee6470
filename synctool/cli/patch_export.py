"""``vime-sync patch export``."""

from __future__ import annotations

from pathlib import Path

import click

from synctool.cli.app import Context, verb
from synctool.cli.patch_common import Where, stack_options
from synctool.cli.report import Report
from synctool.errors import NothingToDo, RepositoryError


@click.command(name="export")
@click.argument("output", type=click.Path(path_type=Path))
@verb
@stack_options
@click.option("--format", "form", type=click.Choice(["mail", "quilt", "single"]), default="mail", show_default=True)
@click.option("--dry-run", is_flag=True, help="Say what would be written, write nothing.")
def command(context: Context, where: Where, output: Path, form: str, dry_run: bool) -> Report:
    """Write the stack for others: mails for 'git am' or a quilt folder in OUTPUT, or one patch as the file OUTPUT.

    The bytes depend on the stack and the pin alone.
    """
    from synctool.patches import mail
    from synctool.patches.export import diff_trees, join_patch
    from synctool.patches.header import parse_header
    from synctool.patches.stack import apply_stack
    from synctool.whole_file import write_whole

    stack = where.load()
    if not stack.patches:
        raise NothingToDo("the series is empty", where=str(stack.folder))
    source = where.open(stack.pin)
    steps = list(apply_stack(source.tree, stack.patches, stack.pin.allowed))
    files: dict[str, bytes] = {}
    if form == "single":
        files[""] = diff_trees(source.repo, source.tree_oid, steps[-1].after)
    for number, step in enumerate(steps, 1):
        body = diff_trees(source.repo, step.before, step.after)
        if form == "mail":
            stem = step.patch.name.rpartition(".")[0]
            files[f"{number:04}-{stem}.patch"] = mail.render_mail(
                parse_header(step.patch.text.header), body, number, len(steps)
            )
        elif form == "quilt":
            files[step.patch.name] = join_patch(step.patch.text.header, body)
    if form == "quilt":
        files["series"] = "".join(f"{patch.name}\n" for patch in stack.patches).encode()
    if form != "single" and output.is_dir() and any(output.iterdir()):
        raise RepositoryError("the folder is not empty", where=str(output), hint="name another, or empty it")
    if not dry_run:
        for name, data in files.items():
            write_whole(output / name if name else output, data)
    written = sorted(str(output / name) if name else str(output) for name in files)
    data_out = {"format": form, "files": written, "tree": steps[-1].after, "dry_run": dry_run}
    did = "would be written" if dry_run else "written"
    return Report("patch export", data_out, [f"{did}: {len(files)} files to {output}", f"tree {steps[-1].after}"])
