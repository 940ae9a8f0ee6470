"""`vime ps`: runs on this host, and what is left of runs that ended badly."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from vime.cli.app import emit_json
from vime.cluster import processes

_SHOWN = 100


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ps(as_json: bool) -> None:
    """List runs, their processes and shared memory on this host."""
    runs = overview()
    if as_json:
        emit_json("ps", runs)
        return
    if not runs:
        click.echo("no run on this host")
        return
    for run in runs:
        state = f"driver {run['driver']}" if run["driver"] else "driver is gone: `vime stop` cleans up"
        click.echo(f"{run['run_id']}  {state}  {run['directory'] or ''}")
        for one in run["processes"]:
            click.echo(f"  {one['pid']:>8}  {one['command'][:_SHOWN]}")
        if run["files"]:
            click.echo(f"  {len(run['files'])} files in shared memory")


def overview() -> list[dict[str, Any]]:
    """A record a run: from the registry, and from processes and files that no record knows."""
    records = {one.run_id: one for one in processes.records()}
    living = processes.processes()
    names = sorted(records.keys() | {one.run_id for one in living})
    found: list[dict[str, Any]] = []
    for name in names:
        record = records.get(name)
        found.append(
            {
                "run_id": name,
                "driver": record.driver if record and record.alive else None,
                "directory": record.directory if record else None,
                "processes": [asdict(one) for one in living if one.run_id == name],
                "files": [str(path) for path in processes.files(name)],
            }
        )
    return found
