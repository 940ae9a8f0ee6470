"""What must hold in a process before torch is loaded: OpenMP's waiting policy and threads, and the limit of open files; and once it is up: its heap.

Driver, trainer and engine call `prepare` first, or are started with `thread_environment`. GNU OpenMP reads these variables once, when
torch loads it. With its default, waiting threads spin: beside one busy neighbour a training step of the toy took 7.8 s instead of 0.8 s.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
from collections.abc import MutableMapping
from dataclasses import dataclass

#: Waiting OpenMP threads sleep at once.
WAIT_POLICY = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}
#: How many threads OpenMP and MKL use.
THREAD_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class FileLimit:
    """Open files that this process may have: before, now, and at most."""

    before: int
    soft: int
    hard: int

    def __str__(self) -> str:
        return f"open files {self.before} -> {self.soft}" if self.soft != self.before else f"open files {self.soft}"


@dataclass(frozen=True)
class Prepared:
    """What `prepare` found and set."""

    threads: int
    wait_policy: str
    spin_count: str
    files: FileLimit
    #: torch was loaded before, so the thread settings of this process came too late.
    late: bool

    def __str__(self) -> str:
        text = (
            f"threads: {self.threads} a process, OMP_WAIT_POLICY={self.wait_policy}, "
            f"GOMP_SPINCOUNT={self.spin_count}; {self.files}"
        )
        return text + " (torch was loaded first: thread settings do not hold in this process)" if self.late else text


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def thread_environment(threads: int) -> dict[str, str]:
    """Variables for a process that is about to be started. A thread count that the user exported wins."""
    counts = {name: os.environ.get(name, str(threads)) for name in THREAD_COUNTS}
    return {name: os.environ.get(name, value) for name, value in WAIT_POLICY.items()} | counts


def prepare(threads: int | None = None, environ: MutableMapping[str, str] = os.environ) -> Prepared:
    """Set what is not set yet, raise the soft limit of open files to the hard one, and say what holds now.

    `threads` is the number of OpenMP threads, the cores of this machine when None.
    """
    for name in THREAD_COUNTS:
        environ.setdefault(name, str(threads or cores()))
    for name, value in WAIT_POLICY.items():
        environ.setdefault(name, value)
    return Prepared(
        threads=int(environ["OMP_NUM_THREADS"].split(",")[0]),
        wait_policy=environ["OMP_WAIT_POLICY"],
        spin_count=environ["GOMP_SPINCOUNT"],
        files=raise_file_limit(),
        late="torch" in sys.modules,
    )


def raise_file_limit() -> FileLimit:
    """Raise this process's soft RLIMIT_NOFILE to its hard limit; children inherit it."""
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):  # a container may forbid it; `vime doctor` says what the limit means
            return FileLimit(before, before, hard)
    return FileLimit(before, hard, hard)


def freeze_heap() -> None:
    """What this process holds by now (modules, model, prompts) it keeps: the collector need not look at it again.

    Each of its full passes did, some 50 ms a step of the toy in the manager alone. vLLM's processes do the same.
    """
    gc.collect()
    gc.freeze()
