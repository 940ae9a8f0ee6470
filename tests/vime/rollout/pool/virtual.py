"""A run in virtual time: the real pool, context and group tasks before an engine that only pretends to compute. No second passes."""

from __future__ import annotations

import asyncio
import math
import random
from argparse import Namespace
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from vime.data.prompts import Prompt
from vime.data.source import RolloutDataSourceWithBuffer
from vime.errors import EngineError, EngineTimeout
from vime.rollout.client import Generation, SamplingParams
from vime.rollout.context import RolloutContext
from vime.rollout.pool.pool import Pool
from vime.rollout.pool.report import StepReport
from vime.rollout.pool.schedules import schedule_of
from vime.rollout.pool.store import Batch, MemoryStore, Store
from vime.sample import VersionSpan

PROMPT = (5, 6)


class VirtualLoop(asyncio.SelectorEventLoop):
    """When nothing is ready, its clock jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self._now = max(self._now, self._scheduled[0]._when)  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


def run_virtually(coroutine: Coroutine[Any, Any, Any]) -> Any:
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))
        loop.close()


@dataclass
class Engine:
    """One token a second; a token's id tells the weights that made it. `length` draws how long a new answer will be."""

    length: Callable[[], int]
    version: int = 0
    fails: Callable[[], EngineError | None] = lambda: None
    requests: int = 0
    salts: set[str | None] = field(default_factory=set)
    lengths: dict[str | None, int] = field(default_factory=dict)
    _running: dict[asyncio.Event, str | None] = field(default_factory=dict)

    async def generate(
        self, token_ids: list[int], sampling_params: SamplingParams, *, session_id: str | None, timeout: float | None
    ) -> Generation:
        self.requests += 1
        self.salts.add(sampling_params.cache_salt)
        if (error := self.fails()) is not None:
            await asyncio.sleep(1)
            raise error
        aborted = asyncio.Event()
        self._running[aborted] = session_id
        tokens: list[int] = []
        if session_id not in self.lengths:
            self.lengths[session_id] = self.length()
        wanted = min(self.lengths[session_id] - (len(token_ids) - len(PROMPT)), sampling_params.max_tokens)
        try:
            while len(tokens) < wanted and not aborted.is_set():
                try:
                    async with asyncio.timeout(1):
                        await aborted.wait()
                except TimeoutError:
                    tokens.append(self.version)
        finally:
            del self._running[aborted]
        spans, start = [], 0
        for version, run in groupby(tokens):
            count = len(list(run))
            spans.append(VersionSpan(str(version), start, start + count))
            start += count
        reason = "abort" if len(tokens) < wanted else "length"
        return Generation(tokens, [-math.log(2)] * len(tokens), reason, tuple(spans))

    async def generate_group(self, *args: Any, **more: Any) -> list[Generation]:
        raise AssertionError("not asked for here")

    async def abort(self, session_ids: Sequence[str] | None) -> None:
        for event, session in self._running.items():
            if session_ids is None or session in session_ids:
                event.set()

    async def update(self, version: int, aborts: bool) -> None:
        if aborts:
            await self.abort(None)
        await asyncio.sleep(0.25)
        self.version = version


@dataclass
class Record:
    """What a run did: its batches and reports, the source's books, and the pool at its end."""

    batches: list[Batch] = field(default_factory=list)
    reports: list[StepReport] = field(default_factory=list)
    seconds: float = 0.0
    most_in_flight: int = 0


async def drive(
    args: Namespace,
    tokenizer: Any,
    engine: Engine,
    store: Store,
    steps: range,
    train: Callable[[], float],
    save: int | None = None,
) -> tuple[Record, Pool]:
    """Push, generate, train, step after step, as `train.py` does; a checkpoint after step `save`."""
    loop = asyncio.get_running_loop()
    context = RolloutContext(args, engine, tokenizer)
    pool = Pool(args, context, store, schedule_of(args))
    record = Record()
    for step in steps:
        flushes = step == steps.start or (args.flush_cache_interval > 0 and step % args.flush_cache_interval == 0)
        await pool.pause(flushes)
        await engine.update(step + 1, aborts=pool.schedule.interruption(flushes).pause_mode == "abort")
        context.serving_version = step + 1
        pool.resume()
        batch, report = await pool.batch(step)
        record.batches.append(batch)
        record.reports.append(report)
        record.most_in_flight = max(record.most_in_flight, report.in_flight)
        await asyncio.sleep(train())
        store.trained(step)
        if step == save:
            store.save(step)
    record.seconds = loop.time()
    return record, pool


def prompts(count: int) -> tuple[Prompt, ...]:
    return tuple(Prompt(i, f"p{i}", f"p{i}", PROMPT, str(i), {}) for i in range(count))


def source_of(args: Namespace, count: int) -> RolloutDataSourceWithBuffer:
    return RolloutDataSourceWithBuffer(args, prompts(count))


def store_of(args: Namespace, count: int) -> MemoryStore:
    return MemoryStore(args, source_of(args, count))


def ragged(rng: random.Random, longest: int) -> Callable[[], int]:
    """Lengths with a long tail."""
    return lambda: min(longest, 1 + int(rng.paretovariate(1.1)))


def failing(rng: random.Random, share: float) -> Callable[[], EngineError | None]:
    return lambda: EngineTimeout("no answer") if rng.random() < share else None
