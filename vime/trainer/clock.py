"""Where the time of a call went."""

from __future__ import annotations

import time


class Clock:
    """Seconds of the phases of one call."""

    def __init__(self) -> None:
        self.start = self.last = time.perf_counter()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name], self.last = now - self.last, now

    def metrics(self) -> dict[str, float]:
        return {f"perf/{name}_time": seconds for name, seconds in self.laps.items()} | {
            "perf/train_time": self.last - self.start
        }
