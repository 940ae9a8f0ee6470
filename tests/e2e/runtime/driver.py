"""`train.py` as a user starts it, as a process under test, and what it must leave behind: nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from vime.cluster import processes

ROOT = Path(__file__).resolve().parents[3]
PROMPTS, GROUP = 4, 2
PATIENCE = 240.0


def named(run: str) -> str:
    """Run ids of this process alone: another checkout may be under test on the same machine."""
    return f"{run}-{os.getpid()}"


class Driver:
    """A running train.py. Its output is read to the end by `finish`, or up to a line by `until`."""

    def __init__(self, flags: list[str]) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "train.py"), *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def until(self, pattern: str) -> re.Match[str]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"{pattern!r} never came:\n{''.join(self.lines)}")

    def finish(self) -> tuple[int, str]:
        assert self.process.stdout is not None
        self.lines += self.process.stdout.readlines()
        return self.process.wait(PATIENCE), "".join(self.lines)


def saving(work: Path) -> list[str]:
    folder = str(work / "checkpoint")
    return ["--save", folder, "--load", folder, "--save-interval", "1"]


def nothing_left(run_id: str, seconds: float = 30.0) -> None:
    """No process, no shared memory, no record: at once where the driver cleaned up, soon where the guardian does."""
    deadline = time.monotonic() + seconds
    while processes.processes(run_id) or any(one.run_id == run_id for one in processes.records()):
        assert time.monotonic() < deadline, processes.processes(run_id)
        time.sleep(0.05)
    assert processes.files(run_id) == []


def pid_of(run_id: str, needle: str) -> int:
    return next(one.pid for one in processes.processes(run_id) if needle in one.command)
