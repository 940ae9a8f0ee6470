"""A small process beside the driver: when the driver is gone, whatever killed it, it ends what is left of the run.

It waits for the end of a pipe that only the driver holds open, so it needs no polling and survives a SIGKILL of the driver.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from vime.cluster import processes

#: Seconds that the run's processes get to end by themselves.
_GRACE = 2.0


def start(record: processes.RunRecord) -> int:
    """Start a guardian for the calling process. Returns the descriptor that it watches: keep it open, let no child inherit it."""
    watched, lifeline = os.pipe()
    root = str(Path(processes.__file__).resolve().parents[2])
    environment = {name: value for name, value in os.environ.items() if name != processes.RUN_VARIABLE}
    subprocess.Popen(
        [sys.executable, "-S", "-m", "vime.cluster.guardian", record.run_id, str(watched)],
        env=environment | {"PYTHONPATH": root},
        pass_fds=(watched,),
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C in the terminal is for the driver
    )
    os.close(watched)
    return lifeline


def main(run_id: str, watched: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(watched, 1):
        pass
    processes.sweep(run_id, _GRACE)
    for record in processes.records():
        if record.run_id == run_id and not record.alive:
            processes.forget(record)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
