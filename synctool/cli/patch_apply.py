"""``vime-sync patch apply``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from synctool.cli.app import Context, verb
from synctool.cli.patch_common import Where, site_option, stack_options, step_data, step_line
from synctool.cli.report import Report
from synctool.errors import NothingToDo, UsageError


@click.command(name="apply")
@verb
@stack_options
@site_option
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Write the patched source into this folder, which must be empty or absent.",
)
@click.option("--replace", is_flag=True, help="Take another installed stack out in the same step.")
@click.option("--dry-run", is_flag=True, help="Say what would be done and the resulting tree; write nothing.")
def command(
    context: Context,
    where: Where,
    site_packages: str | None,
    python: str | None,
    output: Path | None,
    replace: bool,
    dry_run: bool,
) -> Report:
    """Apply the stack.

    With --site-packages, to the installed package of an environment: its files are first proven to be the pin's, all files are switched in one step, and
    'vime-sync patch revert' takes it back. With --output, into a folder. A second apply is a no-op (exit code 4).
    """
    from synctool.git.tree import Tree
    from synctool.patches import install
    from synctool.patches import output as out
    from synctool.patches.stack import try_stack
    from synctool.patches.target import find_target

    if (site_packages is None) == (output is None) and not dry_run:
        raise UsageError("say where to: --site-packages [PATH] or --output FOLDER")
    stack = where.load()
    source = where.open(stack.pin, dry=True)
    application = try_stack(source.tree, stack.patches, stack.pin.allowed)
    if application.error is not None:
        raise application.error
    data: dict[str, Any] = {
        "digest": stack.digest,
        "tree": application.tree,
        "steps": [step_data(step) for step in application.steps],
        "dry_run": dry_run,
    }
    summary = [step_line(step) for step in application.steps]
    if site_packages is not None:
        target = find_target(stack.pin.import_name, Path(site_packages) if site_packages else None, python)
        if not dry_run:
            install.finish_interrupted(target)
        try:
            plan = install.plan_install(stack, application, source.tree, target, replace=replace)
        except NothingToDo as nothing:
            raise NothingToDo(nothing.title, where=nothing.where, hint=f"tree {application.tree}") from nothing
        compared = plan.comparison
        data["installation"] = {
            "package": str(target.package),
            "distribution": target.distribution,
            "version": target.version,
            "equal": compared.equal,
            "differing": list(compared.differing),
            "absent": compared.absent,
            "files": sorted(plan.record.files),
            "not_installed": list(plan.record.not_installed),
            "replaces": plan.replaces,
            "switched_by": None if dry_run else install.install(plan),
        }
        summary.append(
            f"{target.package}: {compared.equal:,} files equal the pin, {compared.absent:,} of the pin's are not installed"
        )
        if compared.differing:
            summary.append(
                f"  differ from the pin, untouched by the stack: {', '.join(plan.record.differing) or 'none'}"
            )
        if plan.record.not_installed:
            summary.append(f"  outside of the package, not installed: {', '.join(plan.record.not_installed)}")
        summary.append(f"{'would change' if dry_run else 'changed'} {len(plan.record.files)} files")
    if output is not None:
        files = Tree(source.repo.objects, application.tree)
        count = sum(1 for _ in files.items()) if dry_run else out.write_tree(files, output)
        data["output"] = {"folder": str(output), "files": count}
        summary.append(f"{output}: {count:,} files{' would be written' if dry_run else ''}")
    summary.append(
        f"tree {application.tree}, stack digest {stack.digest}" + (" (dry run: nothing was written)" if dry_run else "")
    )
    return Report("patch apply", data, summary)
