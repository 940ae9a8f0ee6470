"""``vime-sync ci register``."""

from __future__ import annotations

from pathlib import Path

import click

from synctool.cli.app import Context, verb
from synctool.cli.ci_generate import SOURCE
from synctool.cli.inputs import work_tree
from synctool.cli.report import Report
from synctool.errors import UsageError
from synctool.textfile import read_text


@click.command(name="register")
@click.argument("test")
@click.option("--step", required=True, help="Key of the step (or label, in a hand-written pipeline).")
@click.option(
    "--pipeline", "pipeline", type=click.Path(path_type=Path), help="A hand-written pipeline to edit in place."
)
@click.option("--dry-run", is_flag=True, help="Print the result; write nothing.")
@verb
def command(context: Context, test: str, step: str, pipeline: Path | None, dry_run: bool) -> Report:
    """Add a test file to a step: to our description, or with --pipeline as a command of a hand-written one. Comments and layout stay.

    Exit code 4 when a step has it already.
    """
    from synctool.ci.model import load
    from synctool.ci.register import in_description, in_pipeline
    from synctool.whole_file import write_whole

    root = work_tree(context.repo())
    if not (root / test).is_file():
        raise UsageError("there is no such test", where=test)
    target = pipeline or root / SOURCE
    if not target.exists():
        raise UsageError("there is no such file", where=str(target))
    text = read_text(target, "pipeline" if pipeline else "description of the pipeline")
    if pipeline:
        result = in_pipeline(text, step, ("python", "-m", "pytest", "-q", test), str(target))
    else:
        load(target)  # says what is wrong with it, with the place
        result = in_description(text, step, test, SOURCE)
    data = {"test": test, "step": step, "file": str(target), "dry_run": dry_run}
    if dry_run:
        told = [f"{test}: would be added to step {step}"]
        return Report("ci register", data | {"text": result}, messages=told, body=result)
    write_whole(target, result.encode())
    return Report("ci register", data, [f"{test}: added to step {step}"])
