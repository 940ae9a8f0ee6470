"""`vime report RUN`: a run as one HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from vime.files import asked_file


@click.command()
@click.argument("run", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write.  [default: RUN/report.html]")
def report(run: Path, output: Path | None) -> None:
    """Write one self-contained page about the run in RUN: curves, samples, staleness, time, parity, engine."""
    from vime.observe.report import render

    page = render(run)
    output = output or run / "report.html"
    with asked_file(output) as file:
        file.write(page.encode())
    click.echo(str(output))
