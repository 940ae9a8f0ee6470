"""Which processes and files on this host belong to a run, and how they are ended. It needs the standard library alone: the guardian runs it too.

A process belongs to a run when its environment says so (VIME_RUN_ID). Children inherit that, so orphans are found as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from vime.files import SHARED_MEMORY

RUN_VARIABLE = "VIME_RUN_ID"
_POLL_SECONDS = 0.05
_TRACKER_SECONDS = 3.0


@dataclass(frozen=True)
class RunProcess:
    pid: int
    run_id: str
    command: str


@dataclass(frozen=True)
class RunRecord:
    """One file a run, in `registry()`. `driver_start` (clock ticks since boot) tells the driver from a later process with its pid."""

    run_id: str
    driver: int
    driver_start: int
    directory: str
    ray_directory: str
    command: str

    @property
    def path(self) -> Path:
        return registry() / f"{self.run_id}.json"

    @property
    def alive(self) -> bool:
        return start_ticks(self.driver) == self.driver_start

    def write(self) -> None:
        temporary = self.path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(asdict(self)))
        temporary.replace(self.path)


def registry() -> Path:
    """Folder of the records of this user's runs on this host. Its path is short: Ray puts sockets below it."""
    folder = Path(os.environ.get("VIME_RUNTIME_DIR") or f"/tmp/vime-{os.getuid()}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def run_folder(name: str = ".") -> Path | None:
    """A folder that goes with the run that this process is part of, even one that is killed, made where it is missing; None outside a run."""
    run = os.environ.get(RUN_VARIABLE)
    if run is None:
        return None
    folder = registry() / run / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def records() -> list[RunRecord]:
    """All recorded runs, also those whose driver is gone."""
    found = []
    for path in sorted(registry().glob("*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError):  # it ends as we read it
            found.append(RunRecord(**json.loads(path.read_text())))
    return found


def processes(run_id: str | None = None) -> list[RunProcess]:
    """Living processes of `run_id`, or of every run. The driver is not among them: it set the variable for its children."""
    found = []
    marker = RUN_VARIABLE.encode() + b"="
    for pid in _pids():
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:  # gone, or not ours to read
            continue
        own = next((v[len(marker) :].decode() for v in variables if v.startswith(marker)), None)
        if own is not None and state != "Z" and pid != os.getpid() and run_id in (None, own):
            found.append(RunProcess(pid, own, command))
    return found


def files(run_id: str) -> list[Path]:
    """Shared memory files of a run."""
    return sorted(SHARED_MEMORY.glob(f"vime-{run_id}-*"))


def is_tracker(command: str) -> bool:
    """Whether this is multiprocessing's resource tracker. It unlinks its parent's semaphores when the parent is gone, then ends by
    itself; killed with the others, it would leave them in shared memory for good."""
    return "multiprocessing.resource_tracker" in command


def kill_group(group: int) -> None:
    """SIGKILL every member of process group `group`, resource trackers and the calling process apart."""
    for pid in _pids():
        try:
            belongs = os.getpgid(pid) == group
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if belongs and pid != os.getpid() and not is_tracker(command):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def sweep(run_id: str, grace: float = 5.0, spare: Iterable[int] = ()) -> list[RunProcess]:
    """End every process of the run (SIGTERM, after `grace` seconds SIGKILL), delete its shared memory. Returns what was ended."""
    spared = set(spare)
    ended: dict[int, RunProcess] = {}
    deadline = time.monotonic() + grace
    number = signal.SIGTERM if grace > 0 else signal.SIGKILL
    quiet = 0
    while quiet < 2:  # a process in the middle of its exec shows no environment: look twice
        left = [one for one in processes(run_id) if one.pid not in spared]
        quiet = 0 if left else quiet + 1
        if time.monotonic() > deadline:
            number = signal.SIGKILL
        others = [one for one in left if not is_tracker(one.command)]
        # Trackers end when the others have; they are killed only when even then they do not.
        for one in others or (left if time.monotonic() > deadline + _TRACKER_SECONDS else []):
            if number == signal.SIGKILL or one.pid not in ended:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one.pid, number)
            ended[one.pid] = one
        time.sleep(_POLL_SECONDS)
    for path in files(run_id):
        path.unlink(missing_ok=True)
    return list(ended.values())


def forget(record: RunRecord) -> None:
    """Delete the record and Ray's folder of a run that has ended."""
    shutil.rmtree(record.ray_directory, ignore_errors=True)
    record.path.unlink(missing_ok=True)


def start_ticks(pid: int) -> int | None:
    """When process `pid` started, in clock ticks since boot; None when there is none or it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def _pids() -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            yield int(entry.name)
