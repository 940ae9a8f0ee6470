"""A run of train.py whose steps are kept in memory and in a durable queue in turn: the same processes, the same weights, neighbouring steps.

Two runs cannot be told apart as finely: of two alike, beside each other and in turns, one was 5 % slower from its start to its end.

As ``--data-source-path``: the default source, and with it, since this module puts it in the place of the durable one, the store. What a step
leaves for the queue to write is waited for when the next one begins, and counts as the step's own (``rest``).
"""

from __future__ import annotations

import json
import os
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from vime.cluster import processes
from vime.data.source import RolloutDataSourceWithBuffer
from vime.durable import store
from vime.durable.store import DurableStore
from vime.rollout.pool.store import Batch, MemoryStore

FILE = "alternate.jsonl"


class Source(RolloutDataSourceWithBuffer):
    """The default source by another name."""


def durable(step: int) -> bool:
    return step % 2 == 1


class Alternating:
    """A store for the synchronous schedule: even steps are kept in memory, odd ones in the queue."""

    def __init__(self, args: Namespace, source: Any) -> None:
        self.args = args
        self._stores = {False: MemoryStore(args, source), True: DurableStore(args, source)}
        self._step = -1
        self._pids: set[int] = set()
        self._spent = 0.0

    def planned(self, step: int) -> Batch | None:
        if step != self._step:  # the first that the pool asks for a step
            self._turn_to(step)
        return self._stores[durable(step)].planned(step)

    def trained(self, step: int) -> None:
        self._stores[durable(step)].trained(step)

    def load(self, step: int | None) -> None:
        self._stores[True].load(step)

    def sync(self, step: int | None = None) -> None:
        self._stores[True].sync(step)

    def close(self) -> None:
        self._stores[True].close()

    def __getattr__(self, name: str) -> Any:
        """All else is asked of the step's own store."""
        return getattr(self._stores[durable(self._step)], name)

    def _turn_to(self, step: int) -> None:
        began = time.perf_counter()
        if self._step >= 0:
            self.sync()
        rest = time.perf_counter() - began
        if not self._pids:
            self._pids = {os.getpid(), *(one.pid for one in processes.processes(self.args.run_id))}
        spent = sum(map(processor_seconds, self._pids))
        record = {"step": self._step, "rest": rest, "cpu": spent - self._spent}
        with open(Path(self.args.run_dir) / FILE, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(record) + "\n")
        self._step, self._spent = step, spent


def processor_seconds(pid: int) -> float:
    """Of a process, its threads included."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


store.DurableStore = Alternating  # type: ignore[assignment, misc]
