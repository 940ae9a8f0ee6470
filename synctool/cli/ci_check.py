"""``vime-sync ci check``."""

from __future__ import annotations

import os
from dataclasses import asdict

import click

from synctool.cli.app import Context, verb
from synctool.cli.ci_generate import SOURCE, TARGET
from synctool.cli.inputs import work_tree
from synctool.cli.report import Report
from synctool.errors import Exit


@click.command(name="check")
@verb
def command(context: Context) -> Report:
    """Check that the pipeline is what its description gives, that every test runs in exactly one step, and that named files exist.

    Looks at tracked files and at new ones that git does not ignore. Exit code 1 when something is found.
    """
    from synctool.ci.check import Problem, check
    from synctool.ci.generate import is_current, pipeline, render
    from synctool.ci.model import load

    repo = context.repo()
    root = work_tree(repo)
    listed = repo.run("ls-files", "-z", "--cached", "--others", "--exclude-standard").stdout
    files = [path for path in os.fsdecode(listed).split("\0") if path and (root / path).exists()]
    description = load(root / SOURCE)
    found = check(description, files)
    target = root / TARGET
    if not is_current(target, render(pipeline(description), SOURCE)):
        found.append(Problem("stale", TARGET, f"is not what {SOURCE} gives; run 'vime-sync ci generate'"))
    lines = [f"{one.path}: [{one.rule}] {one.message}" for one in found]
    return Report(
        "ci check",
        {"problems": [asdict(one) for one in found], "steps": [step.key for step in description.steps]},
        lines or [f"{TARGET}: {len(description.steps)} steps; every test runs in exactly one"],
        exit_code=Exit.ATTENTION if found else Exit.OK,
    )
