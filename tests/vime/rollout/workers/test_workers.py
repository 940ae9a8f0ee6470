"""Real worker processes at a real desk, in front of the real pool and the durable queue; some are killed, some stopped, some never answer."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from vime.data.source import RolloutDataSourceWithBuffer
from vime.durable import history
from vime.durable.audit import audit
from vime.durable.queue import control_folder
from vime.durable.store import DurableStore
from vime.errors import MachineError
from vime.observe.ledger import Ledger
from vime.rollout.pool.pool import Pool
from vime.rollout.pool.schedules import schedule_of
from vime.rollout.workers.desk import Desk, WorkerLost
from vime.rollout.workers.fleet import FleetContext
from vime.sample import Sample

ROOT = Path(__file__).resolve().parents[4]
LONG = 300.0


@dataclass
class Workers:
    """Worker processes at a desk."""

    desk: Desk
    address: tuple[str, int]
    lease: float
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    async def start(self, *names: str, capacity: int = 2) -> None:
        for name in names:
            self.processes[name] = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.vime.rollout.workers.answering"),
                    *(self.address[0], str(self.address[1]), self.desk.key, name, str(capacity), str(self.lease)),
                ],
                cwd=ROOT,
            )
        await until(lambda: set(names) <= set(self.desk.workers))

    def signal(self, name: str, number: int) -> None:
        os.kill(self.processes[name].pid, number)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def at_desk(lease: float = LONG) -> AsyncIterator[Workers]:
    desk = Desk(lease)
    workers = Workers(desk, await desk.open("127.0.0.1"), lease)
    try:
        yield workers
    finally:
        await desk.close()
        for process in workers.processes.values():
            process.kill()
            process.wait()


def group(index: int = 0) -> list[Sample]:
    return [Sample(group_index=index, index=index, rollout_id=index, prompt="p", tokens=[5, 6])]


def held(desk: Desk, name: str) -> int:
    return sum(len(line.claims) for line in desk._lines if line.name == name)


def test_a_killed_workers_claims_end_and_others_are_untouched() -> None:
    async def run() -> None:
        async with at_desk() as workers:
            await workers.start("deaf", capacity=2)
            claims = [asyncio.create_task(workers.desk.answer(0, group(i))) for i in range(3)]
            await until(lambda: held(workers.desk, "deaf") == 2)  # as much as it takes, the third waits
            await workers.start("hearing")
            assert (await claims[2])[0].response_length == 2
            workers.signal("deaf", signal.SIGKILL)
            for lost in claims[:2]:
                with pytest.raises(WorkerLost, match="generation worker deaf is lost: its process is gone"):
                    await lost
            assert (await workers.desk.answer(0, group()))[0].finished

    asyncio.run(run())


def test_a_stopped_workers_claims_end_with_its_lease_and_what_it_says_later_is_not_heard() -> None:
    async def run() -> None:
        async with at_desk(lease=1.0) as workers:
            await workers.start("slow")
            workers.signal("slow", signal.SIGSTOP)
            claim = asyncio.create_task(workers.desk.answer(0, group()))
            order = asyncio.create_task(workers.desk.ask("paused"))
            with pytest.raises(WorkerLost, match="nothing was heard of it for 1 s"):
                await claim
            await order  # nobody is left to wait for
            with pytest.raises(MachineError, match="all generation workers are lost"):
                await workers.desk.answer(0, group())
            workers.signal("slow", signal.SIGCONT)  # answers now, to a closed line, and ends
            await asyncio.to_thread(workers.processes["slow"].wait, 60)
            assert workers.desk.workers == []

    asyncio.run(run())


def test_errors_of_a_worker_reach_whoever_asked_and_strangers_do_not_get_in() -> None:
    async def run() -> None:
        async with at_desk() as workers:
            await workers.start("one")
            with pytest.raises(ZeroDivisionError, match="of a user's function"):
                await workers.desk.answer(-1, group())
            reader, writer = await asyncio.open_connection(*workers.address)
            writer.write(b"x" * 64 + (8).to_bytes(8, "big") + b"whatever")
            assert await reader.read() == b""
            writer.close()
            assert workers.desk.workers == ["one"]

    asyncio.run(run())


class NoEngine:
    """The manager's own client: only evaluation would use it."""

    async def abort(self, session_ids: Any) -> None:
        pass


def kill_the_deaf(workers: Workers, lost: Counter[str], holding: bool = True) -> None:
    """They live, so no lease ends what they hold."""
    for name in [name for name in workers.desk.workers if name.startswith("deaf")]:
        if not holding or held(workers.desk, name):
            workers.signal(name, signal.SIGKILL)
            lost["SIGKILL"] += 1


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 8))])
def test_killed_and_stopped_workers_lose_nothing_and_nothing_is_trained_twice(
    make_args: Callable[..., Namespace], tokenizer: Any, tmp_path: Path, seed: int
) -> None:
    """At every step a worker is killed or stopped at a random moment, and a new one joins. The audit is the judge."""
    steps, size = 6, 4
    args = make_args(
        *("--rollout-data-transport", "straw", "--save", str(tmp_path / "run"), "--run-dir", str(tmp_path / "run")),
        *("--rollout-schedule", "fully-async", "--vllm-server-concurrency", "16", "--rollout-generation-workers", "3"),
        *("--num-rollout", str(steps), "--rollout-queue-lease-seconds", "2"),
    )
    rng, lost = random.Random(seed), Counter[str]()
    trained: Counter[int] = Counter()

    async def run() -> None:
        async with at_desk(lease=2.0) as workers:
            await workers.start("deaf-0", "1", "2")
            store = DurableStore(args, RolloutDataSourceWithBuffer(args))
            store.load(-1)
            context = FleetContext(args, NoEngine(), tokenizer, workers.desk)
            context.serving_version = 0
            pool = Pool(args, context, store, schedule_of(args))
            ledger = Ledger(tmp_path / "run", 0)
            for step in range(steps):
                filling = asyncio.create_task(pool.batch(step))
                if step == 0:
                    await until(lambda: held(workers.desk, "deaf-0") > 0)
                else:
                    await workers.start(f"new-{step}", *([f"deaf-{step}"] if step % 2 else []))
                victim = rng.choice(workers.desk.workers) if step else "deaf-0"
                how = rng.choice([signal.SIGKILL, signal.SIGSTOP])
                workers.signal(victim, how)
                lost[how.name] += 1
                async with asyncio.timeout(60):
                    while not filling.done():
                        kill_the_deaf(workers, lost)
                        await asyncio.wait([filling], timeout=0.1)
                batch, report = filling.result()
                lost["groups"] += report.counts["rollout/lost_with_worker"]
                samples = [sample for one in batch.groups for sample in one]
                trained.update(sample.index for sample in samples)
                ledger.trained(step, str(step), {sample.index: sample.group_index for sample in samples})
                store.trained(step)
                kill_the_deaf(workers, lost, holding=False)
                await pool.pause(flushes=True)
                context.serving_version = step + 1
                pool.resume()
            store.sync()
            await pool.close()
            store.close()
            ledger.close()
            known = history.read(control_folder(store.pool, store.pool.current))
            assert all(len(tasks) == size for tasks in known.batches.values())

    asyncio.run(run())
    assert set(trained.values()) == {1}
    assert len(trained) == steps * size * 2
    assert lost["groups"] > 0
    found = audit(tmp_path / "run", deep=True)
    assert found.clean, found.findings
    assert found.trained_samples == steps * size * 2
