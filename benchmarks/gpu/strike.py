"""A fault: in the middle of the weight update after a chosen step, SIGKILL for the engine's server or for the trainer itself.

The trainer's hook before a training step: it counts the broadcasts of the update that follows and strikes at one of them, once for each plan.
"""

from __future__ import annotations

import json
import os
import signal
from argparse import Namespace
from pathlib import Path
from typing import Any

#: JSON: step -> "engine" or "trainer"; and the folder where strikes leave their marks.
PLAN, MARKS = "VIME_BENCH_STRIKES", "VIME_BENCH_STRIKE_MARKS"
_BROADCAST = 12


def before_step(
    args: Namespace, rollout_id: int, step_id: int, model: Any, optimizer: Any, opt_param_scheduler: Any
) -> None:
    from vime.cluster import processes
    from vime.transport import nccl

    victim = json.loads(os.environ[PLAN]).get(str(rollout_id))
    mark = Path(os.environ[MARKS]) / str(rollout_id)
    if victim is None or mark.exists():
        return
    mark.parent.mkdir(parents=True, exist_ok=True)
    pids = [os.getpid()]
    if victim == "engine":
        pids = [one.pid for one in processes.processes(args.run_id) if "vime.engine.server" in one.command]
    whole, count = nccl.Group.broadcast, 0

    def broadcast(self: nccl.Group, data: Any) -> Any:
        nonlocal count
        count += 1
        work = whole(self, data)
        if count == _BROADCAST:
            mark.write_text(victim)
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        return work

    nccl.Group.broadcast = broadcast  # type: ignore[method-assign]
