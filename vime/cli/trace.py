"""`vime trace RUN`: a run as a Perfetto trace."""

from __future__ import annotations

import json
from pathlib import Path

import click

from vime.errors import UsageError
from vime.files import asked_file


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write.  [default: RUN/perfetto.json]")
def trace(run: Path, output: Path | None) -> None:
    """Write a run's phases and samples as a trace that ui.perfetto.dev opens."""
    from vime.observe.spans import perfetto

    found = perfetto(run)
    if not any(event["ph"] == "X" for event in found["traceEvents"]):
        raise UsageError(
            "no span is recorded there", where=str(run), hint="RUN is the folder that --run-dir or --save named"
        )
    output = output or run / "perfetto.json"
    with asked_file(output) as file:
        file.write(json.dumps(found).encode())
    click.echo(
        f"{sum(event['ph'] == 'X' for event in found['traceEvents'])} spans in {output}: open it in ui.perfetto.dev"
    )
