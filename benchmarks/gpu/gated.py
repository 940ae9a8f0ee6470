"""A data source for runs that start side by side and are measured one after another: it deals nothing before the run's turn, and its later
prompts are answered at ragged lengths."""

from __future__ import annotations

import os
import time
from pathlib import Path

from vime.data.protocol import Group
from vime.data.source import RolloutDataSourceWithBuffer

#: Folder of a run's two marks: "ready" when it would begin, "go" when it may.
GATE = "VIME_BENCH_GATE"
#: The first group that is answered by `ragged.generate`.
RAGGED_FROM = "VIME_BENCH_RAGGED_FROM"
_POLL_SECONDS = 0.02


class Source(RolloutDataSourceWithBuffer):
    """As the built-in one, once the gate is open."""

    def get_samples(self, num_samples: int) -> list[Group]:
        gate = Path(os.environ[GATE])
        gate.mkdir(parents=True, exist_ok=True)
        (gate / "ready").touch()
        # Nothing of the run is under way before its first prompts, so its event loop may stand still.
        while not (gate / "go").exists():
            time.sleep(_POLL_SECONDS)
        groups = super().get_samples(num_samples)
        for sample in (sample for group in groups for sample in group):
            if (sample.group_index or 0) >= int(os.environ[RAGGED_FROM]):
                sample.generate_function_path = "ragged.generate"
        return groups
