"""Two runs of train.py that live beside each other and take turns, a step each: what slows the machine down for a while slows both.

The trainers' hook before a training step. A turn goes from one step's first update to the next one's, so it has one training, one update of the
weights and one generation. What a run still does after its turn (a queue's writing, say) would be the other's burden: for a moment nobody has the
turn, and the processor time that is spent in it, beyond what the run spends in the other's turn, is the step's rest.
"""

from __future__ import annotations

import json
import os
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

#: The folder where runs meet, and this run's name there; the others' names are those of its folders.
FOLDER, SIDE = "VIME_BENCH_TURNS", "VIME_BENCH_SIDE"
_POLL_SECONDS, _REST_SECONDS = 0.005, 0.3

#: Of this trainer: the processor time of its run when its turn began, and that moment.
_began: tuple[float, float] | None = None


def before_step(
    args: Namespace, rollout_id: int, step_id: int, model: Any, optimizer: Any, opt_param_scheduler: Any
) -> None:
    global _began
    if step_id:
        return
    folder, side = Path(os.environ[FOLDER]), os.environ[SIDE]
    step: dict[str, float] = {}
    if _began is not None:
        step["seconds"] = time.perf_counter() - _began[1]
    ended = processor_seconds(args.run_id, folder / side)
    if _began is not None:
        step["cpu"] = ended - _began[0]
    time.sleep(_REST_SECONDS)
    rested, since = processor_seconds(args.run_id, folder / side), time.perf_counter()
    give(folder, side)
    while (folder / "turn").read_text() != side:
        time.sleep(_POLL_SECONDS)
    now = processor_seconds(args.run_id, folder / side)
    if step:
        idle = (now - rested) / (time.perf_counter() - since)
        step["rest"] = rested - ended - idle * _REST_SECONDS
        with open(folder / side / "steps.jsonl", "a") as stream:
            stream.write(json.dumps(step) + "\n")
    _began = now, time.perf_counter()


def give(folder: Path, side: str) -> None:
    """To the next that is here; to itself where no other is."""
    here = sorted(one.name for one in folder.iterdir() if one.is_dir() and not (one / "over").exists())
    temporary = folder / f"turn.{side}"
    temporary.write_text(next((name for name in here if name > side), here[0]) if here else side)
    temporary.replace(folder / "turn")


def processor_seconds(run_id: str, side: Path) -> float:
    """Of all processes of the run: this one, the one that began it, and theirs."""
    from vime.cluster import processes

    pids = {os.getpid(), int((side / "pid").read_text()), *(one.pid for one in processes.processes(run_id))}
    return sum(map(of_process, pids))


def of_process(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
