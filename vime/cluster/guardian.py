"""A small process beside the driver: when the driver is gone, whatever killed it, it ends what is left of the run.

It waits for the end of a pipe that only the driver holds open, so it needs no polling and survives a SIGKILL of the driver.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from vime.cluster import processes
from vime.errors import MachineError

#: Seconds that the run's processes get to end by themselves.
_GRACE = 2.0
#: Seconds that a new run of the same name waits for this to be over.
_SETTLE_SECONDS, _POLL_SECONDS = 30.0, 0.05


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


def settle(record: processes.RunRecord) -> None:
    """Return when nothing is left of a run whose driver died. Its guardian may still be at work: it would end a new run of that name too.

    Raises MachineError when that one does not come to an end.
    """
    processes.sweep(record.run_id, grace=0)
    deadline = time.monotonic() + _SETTLE_SECONDS
    while record.path.exists() and _guarded(record.run_id):
        if time.monotonic() > deadline:
            raise MachineError(
                f"what is left of run {record.run_id} is still being ended",
                hint=f"`vime stop {record.run_id}`, or --run-id names another",
            )
        time.sleep(_POLL_SECONDS)
    processes.forget(record)


def _guarded(run_id: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ends as we read it
            command = path.read_bytes().split(b"\0")
            if b"vime.cluster.guardian" in command and run_id.encode() in command:
                return True
    return False


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
