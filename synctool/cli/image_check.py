"""``vime-sync image check``."""

from __future__ import annotations

from pathlib import Path

import click

from synctool.cli.app import Context, verb
from synctool.cli.report import Report
from synctool.errors import Exit


@click.command(name="check")
@click.argument("candidate", type=click.Path(path_type=Path))
@verb
def command(context: Context, candidate: Path) -> Report:
    """Check a candidate: hash every blob, compare tag, labels, statement and bill of materials, and find the stack in the layers.

    Exit code 1 when something does not fit.
    """
    from synctool.cli.terminal import progress
    from synctool.images.candidate import check, load

    known, _ = load(candidate)
    with progress("reading the layers", quiet=context.quiet):
        wrong = check(candidate)
    told = wrong or [
        f"{known.tag} {known.digest}: blobs, labels, statement, bill of materials and installed stack agree"
    ]
    return Report(
        "image check", known.to_json() | {"wrong": wrong}, told, exit_code=Exit.ATTENTION if wrong else Exit.OK
    )
