"""`vime stop RUN`: ends a run as Ctrl-C would, then whatever is left of it."""

from __future__ import annotations

import os
import signal
import time

import click

from vime.cli.app import emit_json
from vime.cluster import processes
from vime.errors import UsageError

_POLL_SECONDS = 0.1


@click.command()
@click.argument("run_id")
@click.option("--grace", default=30.0, show_default=True, help="Seconds for the driver to end by itself.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def stop(run_id: str, grace: float, as_json: bool) -> None:
    """End run RUN_ID: its driver, its processes, its shared memory."""
    record = next((one for one in processes.records() if one.run_id == run_id), None)
    if record is None and not processes.processes(run_id) and not processes.files(run_id):
        raise UsageError(f"no run {run_id!r} on this host", hint="`vime ps` lists them")
    if record is not None and record.alive:
        os.kill(record.driver, signal.SIGINT)
        deadline = time.monotonic() + grace
        while record.alive and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        if record.alive:
            os.kill(record.driver, signal.SIGKILL)
    ended = processes.sweep(run_id, grace=5.0)
    if record is not None:
        processes.forget(record)
    if as_json:
        emit_json("stop", {"run_id": run_id, "swept": [one.pid for one in ended]})
    else:
        click.echo(
            f"run {run_id} has ended" + (f"; {len(ended)} processes had to be ended one by one" if ended else "")
        )
