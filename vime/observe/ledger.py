"""Which samples were trained, from the trainer's own account of its batches: a record a step, counted, not assumed."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vime.files import whole_file
from vime.observe.metrics import read_lines

FILE = "ledger.jsonl"


@dataclass(frozen=True)
class Account:
    """`most` is how often the most often trained sample was trained."""

    prompts: int
    samples: int
    most: int

    def __str__(self) -> str:
        often = "each trained once" if self.most <= 1 else f"up to {self.most} times trained"
        return f"{self.prompts} prompts, {self.samples} samples, {often}"


class Ledger:
    """Appends what was trained. A run that resumes at `start` forgets the steps from there on: their weights are gone."""

    def __init__(self, directory: Path, start: int) -> None:
        self.path = directory / FILE
        kept = [record for record in read_ledger(self.path) if record["rollout_id"] < start]
        with whole_file(self.path) as file:
            file.writelines(json.dumps(record).encode() + b"\n" for record in kept)
        self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115 - open for as long as the run

    def trained(self, rollout_id: int, version: str, samples: Mapping[int, int]) -> None:
        """`samples`: sample index -> group index, of all that went into this rollout's steps."""
        record = {"rollout_id": rollout_id, "version": version, "samples": [[s, g] for s, g in samples.items()]}
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def account(self) -> Account:
        return count([record["samples"] for record in read_ledger(self.path)])

    def close(self) -> None:
        self._file.close()


def read_ledger(path: Path) -> list[dict[str, Any]]:
    """Records `{"rollout_id", "version", "samples": [[sample, group], ...]}` in the order of the steps; none when there is no file."""
    return list(read_lines(path))


def count(steps: Sequence[Sequence[Sequence[int]]]) -> Account:
    """Of (sample, group) pairs a step."""
    times = Counter(sample for step in steps for sample, _ in step)
    groups = {group for step in steps for _, group in step}
    return Account(len(groups), len(times), max(times.values(), default=0))
