"""Starts trainer ranks as processes of their own and gives them jobs (see `rank_jobs`)."""

from __future__ import annotations

import multiprocessing
import socket
from typing import Any

import rank_jobs


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def run_ranks(world: int, jobs: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The outcome of every job on every rank; fails with the tracebacks when there are any."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    ports = free_ports(len(jobs))
    processes = [
        context.Process(target=rank_jobs.run, args=(r, world, ports, jobs, results), daemon=True) for r in range(world)
    ]
    for process in processes:
        process.start()
    try:
        gathered = dict(results.get(timeout=800) for _ in range(world))
    finally:
        for process in processes:
            process.join(timeout=20)
            if process.is_alive():
                process.kill()
    failures = [o for rank in range(world) for o in gathered[rank].values() if isinstance(o, str)]
    assert not failures, "\n".join(failures)
    return [gathered[rank] for rank in range(world)]
