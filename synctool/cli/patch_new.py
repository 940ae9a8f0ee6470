"""``vime-sync patch new``."""

from __future__ import annotations

from pathlib import Path

import click

from synctool.cli.app import Context, verb
from synctool.cli.patch_common import Where, stack_options
from synctool.cli.report import Report
from synctool.errors import UsageError


@click.command(name="new")
@click.argument("name")
@click.argument("folder", type=click.Path(path_type=Path))
@verb
@stack_options
@click.option("-d", "--description", required=True, help="What the patch does, in one line.")
@click.option("--forwarded", default="no", help="URL of the upstream pull request, or 'not-needed'.  [default: no]")
@click.option(
    "--upstream-status",
    default="Pending",
    help="Pending, Submitted [where], Backport [what], Inappropriate [why].  [default: Pending]",
)
@click.option("--removal-condition", required=True, help="When the patch can go.")
@click.option("--regression-test", required=True, help="file.py::test that fails without it.")
@click.option("--dry-run", is_flag=True, help="Check the header, write nothing.")
def command(
    context: Context,
    where: Where,
    name: str,
    folder: Path,
    description: str,
    forwarded: str,
    upstream_status: str,
    removal_condition: str,
    regression_test: str,
    dry_run: bool,
) -> Report:
    """Start patch NAME on top of the stack: its header, and the patched source in FOLDER to edit.

    The patch joins the series when 'vime-sync patch refresh NAME --from FOLDER --accept' finds a change.
    """
    from synctool.git.tree import Tree
    from synctool.patches.digest import patch_sha256
    from synctool.patches.header import lint_header, parse_header, render_header
    from synctool.patches.refresh import PROPOSED
    from synctool.patches.series import check_name
    from synctool.patches.stack import apply_stack
    from synctool.patches.workspace import Note, lay_out
    from synctool.whole_file import write_whole

    stack = where.load()
    file = name if name.endswith((".patch", ".diff")) else f"{name}.patch"
    check_name(file, "NAME")
    if any(patch.name == file for patch in stack.patches):
        raise UsageError(
            f"{file} is in the series already", where=str(stack.folder), hint="edit it: 'vime-sync patch edit'"
        )
    header = render_header(
        [
            ("Description", description),
            ("Forwarded", forwarded),
            ("Upstream-Status", upstream_status),
            ("Removal-Condition", removal_condition),
            ("Regression-Test", regression_test),
        ]
    )
    wrong = lint_header(parse_header(header), file)
    if wrong:
        raise UsageError(wrong[0].message, hint=wrong[0].fix)
    source = where.open(stack.pin)
    steps = list(apply_stack(source.tree, stack.patches, stack.pin.allowed))
    top = steps[-1].after if steps else source.tree_oid
    data = {"patch": file, "folder": str(folder), "before": top, "dry_run": dry_run}
    if dry_run:
        return Report("patch new", data, [header.decode(), "dry run: nothing was written"])
    note = Note(file, stack.pin.label, top, patch_sha256(header))
    count = lay_out(Tree(source.repo.objects, top), folder, note)
    write_whole(stack.folder / PROPOSED / file, header)
    return Report(
        "patch new",
        data,
        [f"{folder}: {count:,} files; edit them, then: vime-sync patch refresh {file} --from {folder} --accept"],
    )
