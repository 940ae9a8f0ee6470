"""`vime plot RUN_DIR`: the reward curve as a PNG."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--out", type=click.Path(path_type=Path), default=None, help="File to write [default: DIRECTORY/curve.png]."
)
def plot(directory: Path, out: Path | None) -> None:
    """Draw the reward curve of the run in DIRECTORY."""
    from vime.observe.plot import plot_run

    click.echo(str(plot_run(directory, out)))
