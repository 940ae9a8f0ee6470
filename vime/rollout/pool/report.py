"""What happened since the last batch: counts of ends, and how long the trainer waited. Filled by the pool, read by the metrics."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from vime.data.protocol import Group


@dataclass
class StepReport:
    """`samples` that ended, `failed` of them; `rejected` groups. `seconds`: since the last batch, of which `wait` somebody waited for this one."""

    counts: Counter[str] = field(default_factory=Counter)
    rejected: list[Group] = field(default_factory=list)
    samples: int = 0
    failed: int = 0
    began: float = field(default_factory=time.perf_counter)
    seconds: float = 0.0
    wait: float = 0.0
    pause: float = 0.0
    in_flight: int = 0
    ready: int = 0
    _paused_at: float | None = None

    def ended(self, group: Group, failures: Sequence[str], counted: bool = True) -> None:
        """`failures`: a word for each sample that failed; `counted` unless another counter has them."""
        self.samples += len(group)
        self.failed += len(failures)
        self.counts["rollout/failed_samples"] += len(failures)
        if counted:
            self.counts.update(f"rollout/failed/{reason}" for reason in failures)

    def causes(self) -> str:
        found = [
            f"{count} {name.rpartition('/')[2]}"
            for name, count in self.counts.items()
            if name.startswith(("rollout/failed/", "rollout/retries/"))
        ]
        return ", ".join(found)

    def paused(self, now: float) -> None:
        self._paused_at = now

    def resumed(self, now: float) -> None:
        if self._paused_at is not None:
            self.pause += now - self._paused_at
            self._paused_at = None

    def waited(self, since: float, in_flight: int, ready: int, ahead: bool) -> None:
        """The batch is there: somebody waited for it since `since`."""
        now = time.perf_counter()
        self.wait = now - since
        self.seconds = now - self.began if ahead else self.wait
        self.in_flight, self.ready = in_flight, ready

    def metrics(self) -> dict[str, float]:
        """Under rollout/pool/: groups running and ready behind this batch, seconds since the last, the share of them waited, seconds of pause."""
        return {
            "rollout/pool/in_flight": float(self.in_flight),
            "rollout/pool/ready": float(self.ready),
            "rollout/pool/seconds": self.seconds,
            "rollout/pool/wait_share": self.wait / self.seconds if self.seconds > 0 else 0.0,
            "rollout/pool/pause_time": self.pause,
        }
