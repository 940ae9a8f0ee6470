"""``vime-sync patch lint``."""

from __future__ import annotations

import click

from synctool.cli.app import Context, verb
from synctool.cli.patch_common import Where, stack_options
from synctool.cli.report import Report
from synctool.errors import Exit, NothingToDo


@click.command(name="lint")
@click.argument("names", nargs=-1, metavar="[PATCH]...")
@verb
@stack_options
def command(context: Context, where: Where, names: tuple[str, ...]) -> Report:
    """Check headers (DEP-3, Upstream-Status, removal condition, regression test), form and path policy of the patches.

    Needs neither the source nor the network. Exit code 1: findings. An empty series is nothing to do (4).
    """
    from synctool.patches.lint import lint_patch

    stack = where.load()
    patches = [stack.patch(name) for name in names] or list(stack.patches)
    if not patches:
        raise NothingToDo("the series is empty: no patch was checked", where=str(stack.folder))
    root = next(
        (f for f in (stack.folder.absolute(), *stack.folder.absolute().parents) if (f / ".git").exists()),
        context.directory,
    )
    found = [finding for patch in patches for finding in lint_patch(patch, stack.pin.allowed, root)]
    data = {
        "patches": [patch.name for patch in patches],
        "findings": [{"where": f.where, "rule": f.rule, "message": f.message, "fix": f.fix} for f in found],
    }
    summary = [f"{f.where}: {f.message} [{f.rule}]\n  {f.fix}" for f in found]
    summary.append(f"{len(patches)} patches checked, {len(found)} findings")
    return Report("patch lint", data, summary, exit_code=Exit.ATTENTION if found else Exit.OK)
