"""``vime-sync patch drop``."""

from __future__ import annotations

import click

from synctool.cli.app import Context, verb
from synctool.cli.patch_common import Where, stack_options
from synctool.cli.report import Report
from synctool.errors import RepositoryError


@click.command(name="drop")
@click.argument("name")
@verb
@stack_options
@click.option("--reason", required=True, help="Why: it stands in the header (--at-next-pin) or in the report.")
@click.option("--at-next-pin", is_flag=True, help="Only mark it: the next 'patch rebase' leaves it out.")
@click.option("--dry-run", is_flag=True, help="Check that the others apply without it; write nothing.")
def command(context: Context, where: Where, name: str, reason: str, at_next_pin: bool, dry_run: bool) -> Report:
    """Remove a patch from the stack, if the others apply without it, or mark it for removal at the next pin."""
    from synctool.patches.header import set_field
    from synctool.patches.series import edit_series
    from synctool.patches.stack import try_stack
    from synctool.whole_file import write_whole

    stack = where.load()
    patch = stack.patch(name)
    path = stack.folder / patch.name
    if at_next_pin:
        header = set_field(patch.text.header, "Drop-At-Next-Pin", f"yes; {' '.join(reason.split())}")
        if not dry_run:
            write_whole(path, header + patch.data[len(patch.text.header) :])
        data = {"patch": patch.name, "at_next_pin": True, "reason": reason, "dry_run": dry_run}
        return Report("patch drop", data, [f"{patch.name}: {'would be' if dry_run else 'is'} left out at the next pin"])
    source = where.open(stack.pin, dry=True)
    rest = tuple(other for other in stack.patches if other is not patch)
    applied = try_stack(source.tree, rest, stack.pin.allowed)
    if applied.error is not None:
        raise RepositoryError(
            f"without it the stack does not apply: {applied.error}",
            where=str(path),
            hint="drop or refresh that patch first",
        )
    if not dry_run:
        series = stack.folder / "series"
        # The series first: a listed patch that is missing is an error, an unlisted file only has to be removed.
        write_whole(series, edit_series(series.read_text(), remove=patch.name).encode())
        path.unlink()
    data = {"patch": patch.name, "at_next_pin": False, "reason": reason, "tree": applied.tree, "dry_run": dry_run}
    return Report(
        "patch drop",
        data,
        [f"{patch.name}: {'would be ' if dry_run else ''}removed; the stack's tree is {applied.tree}"],
    )
