"""``vime-sync patch status``."""

from __future__ import annotations

import hashlib
from pathlib import Path

import click

from synctool.cli.app import Context, verb
from synctool.cli.patch_common import Where, site_option, stack_options
from synctool.cli.report import Report
from synctool.errors import Exit, SyncError


@click.command(name="status")
@verb
@stack_options
@site_option
def command(context: Context, where: Where, site_packages: str | None, python: str | None) -> Report:
    """Say what an environment's package is: stock, patched (with which stack), damaged, foreign; and whether a run was killed.

    Changes nothing. Exit code 1: damaged, foreign, or a killed run left files to switch.
    """
    from synctool.git.tree import Tree
    from synctool.patches import install
    from synctool.patches.stack import try_stack
    from synctool.patches.target import find_target

    stack = where.load()
    target = find_target(stack.pin.import_name, Path(site_packages) if site_packages else None, python)
    messages = []
    originals: dict[str, str | None] = {}
    if install.look(target).record is None:
        try:
            source = where.open(stack.pin, dry=True)
            application = try_stack(source.tree, stack.patches, stack.pin.allowed)
            prefix = stack.pin.import_name + "/"
            paths = {
                p for step in application.steps for o in step.outcomes for p in o.change.paths if p.startswith(prefix)
            }
            base = Tree(source.repo.objects, application.base)
            for path in sorted(paths):
                entry = base.get(path)
                content = None if entry is None else base.store.read(entry.oid, "blob")
                originals[path.removeprefix(prefix)] = None if content is None else hashlib.sha256(content).hexdigest()
        except SyncError as error:
            messages.append(f"not compared with the pin: {error}")
    status = install.look(target, originals)
    record = status.record
    state = "interrupted" if status.pending else status.state
    data = {
        "package": str(target.package),
        "distribution": target.distribution,
        "version": target.version,
        "state": state,
        "digest": record.digest if record else None,
        "tree": record.tree if record else None,
        "patches": [name for name, _ in record.patches] if record else [],
        "is_this_stack": record is not None and record.digest == stack.digest,
        "wrong": list(status.wrong),
        "pending": list(status.pending),
        "left_over": status.left_over,
    }
    said = {
        "stock": "stock: no stack is applied",
        "patched": f"patched with {'this' if data['is_this_stack'] else 'another'} stack: {record.digest if record else ''}",
        "damaged": f"damaged: {len(status.wrong)} files are not what the record says: {', '.join(status.wrong[:5])}",
        "foreign": f"foreign: {len(status.wrong)} files differ from the pin: {', '.join(status.wrong[:5])}",
        "interrupted": f"interrupted: {len(status.pending)} files are still to be switched; the next apply or revert finishes it first",
    }[state]
    if status.left_over and not status.pending:
        messages.append(
            f"a killed run left {status.left_over}; the state above is whole, and the next apply or revert removes it"
        )
    good = state in ("stock", "patched")
    return Report(
        "patch status",
        data,
        [f"{target.package}: {said}"],
        messages=messages,
        exit_code=Exit.OK if good else Exit.ATTENTION,
    )
