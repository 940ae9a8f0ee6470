"""`vime report RUN`: a run as one HTML page."""

from __future__ import annotations

import os
from pathlib import Path

import click


@click.command()
@click.argument("run", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write.  [default: RUN/report.html]")
def report(run: Path, output: Path | None) -> None:
    """Write one self-contained page about the run in RUN: curves, samples, staleness, time, parity, engine."""
    from vime.observe.report import render

    page = render(run)
    output = output or run / "report.html"
    temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    temporary.write_text(page, encoding="utf-8")
    temporary.replace(output)
    click.echo(str(output))
