"""Starts trainer ranks as processes of their own and gives them jobs (see `rank_jobs`)."""

from __future__ import annotations

import multiprocessing
from typing import Any

import rank_jobs


def run_ranks(world: int, jobs: dict[str, dict[str, Any]], *, daemon: bool = True) -> list[dict[str, Any]]:
    """The outcome of every job on every rank; fails with the tracebacks when there are any. A `daemon` starts no processes itself."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    ports = context.Queue()
    processes = [
        context.Process(target=rank_jobs.run, args=(r, world, ports, jobs, results), daemon=daemon)
        for r in range(world)
    ]
    for process in processes:
        process.start()
    gathered: dict[int, dict[str, Any]] = {}
    try:
        while len(gathered) < world:
            rank, outcomes = results.get(timeout=800)
            gathered[rank] = outcomes
            if any(isinstance(outcome, str) for outcome in outcomes.values()):
                break  # the others wait for this one in a collective
    finally:
        for process in processes:
            process.join(timeout=20 if len(gathered) == world else 1)
            if process.is_alive():
                process.kill()
    failures = [outcome for one in gathered.values() for outcome in one.values() if isinstance(outcome, str)]
    assert not failures, "\n".join(failures)
    return [gathered[rank] for rank in range(world)]
