"""``vime-sync ci generate``."""

from __future__ import annotations

import click

from synctool.cli.app import Context, verb
from synctool.cli.inputs import work_tree
from synctool.cli.report import Report
from synctool.errors import NothingToDo

SOURCE, TARGET = ".buildkite/steps.toml", ".buildkite/pipeline.yml"


@click.command(name="generate")
@click.option("--dry-run", is_flag=True, help="Print the pipeline; write nothing.")
@verb
def command(context: Context, dry_run: bool) -> Report:
    """Write .buildkite/pipeline.yml from .buildkite/steps.toml. Exit code 4 when it is up to date."""
    from synctool.ci.generate import is_current, pipeline, render
    from synctool.ci.model import load
    from synctool.whole_file import write_whole

    root = work_tree(context.repo())
    value = pipeline(load(root / SOURCE))
    text = render(value, SOURCE)
    target = root / TARGET
    if dry_run:
        return Report("ci generate", {"path": TARGET, "text": text, "dry_run": True}, body=text)
    if is_current(target, text):
        raise NothingToDo("the pipeline is up to date", where=TARGET)
    write_whole(target, text)
    return Report(
        "ci generate", {"path": TARGET, "steps": len(value["steps"])}, [f"wrote {TARGET}: {len(value['steps'])} steps"]
    )
