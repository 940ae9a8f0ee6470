"""Where workers get groups and bring answers. One in the rollout manager, on its event loop.

A worker that joins says how many groups it takes. Each group that it has is a *claim*: one worker may answer it, until it does, its line ends
(killed, its node lost), or nothing was heard of it for `lease_seconds` (stopped, cut off). Then its claims end with `WorkerLost`, the pool puts
the groups back and the next claim gets them; what the lost worker says later is not listened to, since its line is closed. So a group has at
most one answer, whoever dies. Capacity of a lost worker is gone for this run; without any worker the run ends.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from vime.data.protocol import Group
from vime.errors import MachineError, VimeError
from vime.rollout.workers import wire

log = logging.getLogger(__name__)


class WorkerLost(VimeError):
    """The worker that had the group is gone; the group can be given to another."""


@dataclass(eq=False)
class _Claim:
    """A group to be answered for `step`. `worker`: who has it."""

    number: int
    step: int
    group: Group
    answer: asyncio.Future[Group]
    worker: _Line | None = None


@dataclass(eq=False)
class _Line:
    """A worker that joined."""

    name: str
    capacity: int
    writer: asyncio.StreamWriter
    heard: float
    claims: set[int] = field(default_factory=set)
    #: Orders that it has not confirmed.
    orders: dict[int, asyncio.Future[None]] = field(default_factory=dict)


class Desk:
    """See the module. Used on one event loop; `open` first."""

    def __init__(self, lease_seconds: float) -> None:
        self.lease_seconds = lease_seconds
        self.key = secrets.token_hex(32)
        self._server: asyncio.Server | None = None
        self._watch: asyncio.Task[None] | None = None
        self._lines: list[_Line] = []
        self._claims: dict[int, _Claim] = {}
        self._waiting: deque[int] = deque()
        #: The last order of each kind, for those that join later.
        self._standing: dict[str, tuple[Any, ...]] = {}
        self._joined = asyncio.Event()
        self._count = 0
        self._had_workers = False

    async def open(self, host: str) -> tuple[str, int]:
        """Listen on a free port of `host`. Returns the address for workers."""
        self._server = await asyncio.start_server(self._serve, host, 0)
        self._watch = asyncio.create_task(self._end_leases())
        found: tuple[str, int] = self._server.sockets[0].getsockname()[:2]
        return found

    @property
    def workers(self) -> list[str]:
        """Names of those that are there."""
        return [line.name for line in self._lines]

    async def joined(self, count: int) -> None:
        """Wait until `count` are there."""
        while len(self._lines) < count:
            self._joined.clear()
            await self._joined.wait()

    async def answer(self, step: int, group: Group) -> Group:
        """`group` as a worker answered it. Raises WorkerLost when that one is gone, MachineError when all are, and what the worker raised."""
        self._refuse_without_workers()
        claim = _Claim(self._next(), step, group, asyncio.get_running_loop().create_future())
        self._claims[claim.number] = claim
        self._waiting.append(claim.number)
        self._give()
        try:
            return await claim.answer
        finally:
            self._end(claim)

    def tell(self, word: str, *given: Any, standing: bool = True) -> None:
        """An order to all; a `standing` one also to those that join later."""
        if standing:
            self._standing[word] = given
        for line in self._lines:
            wire.send(line.writer, "order", 0, word, *given)

    async def ask(self, word: str) -> None:
        """An order to all that are there; wait until each has done it or is gone. A stopped one is gone after `lease_seconds`."""
        waiting = []
        for line in self._lines:
            number = self._next()
            line.orders[number] = asyncio.get_running_loop().create_future()
            waiting.append(line.orders[number])
            wire.send(line.writer, "order", number, word)
        await asyncio.gather(*waiting)

    async def close(self) -> None:
        """Let all workers go."""
        if self._watch is not None:
            self._watch.cancel()
        if self._server is not None:
            self._server.close()
        for line in list(self._lines):
            line.writer.close()

    # -- lines ---------------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not await wire.check_key(reader, self.key) or (hello := await wire.receive(reader)) is None:
            writer.close()
            return
        name, capacity = hello
        line = _Line(name, capacity, writer, self._now())
        self._lines.append(line)
        self._had_workers = True
        for word, given in self._standing.items():
            wire.send(writer, "order", 0, word, *given)
        self._joined.set()
        self._give()
        try:
            while (message := await wire.receive(reader)) is not None:
                if line not in self._lines:  # its lease has ended: whatever it says comes too late
                    return
                line.heard = self._now()
                self._hear(line, message)
        finally:
            self._lose(line, "its process is gone")

    def _hear(self, line: _Line, message: tuple[Any, ...]) -> None:
        match message:
            case ("answer", number, group) if number in line.claims:
                self._claims[number].answer.set_result(group)
                line.claims.discard(number)
            case ("error", number, error) if number in line.claims:
                self._claims[number].answer.set_exception(error)
                line.claims.discard(number)
            case ("done", number):
                line.orders.pop(number).set_result(None)
        self._give()

    def _lose(self, line: _Line, why: str) -> None:
        if line not in self._lines:
            return
        self._lines.remove(line)
        line.writer.close()
        for done in line.orders.values():
            done.set_result(None)
        lost = [self._claims[number] for number in sorted(line.claims)]
        log.warning("generation worker %s is lost (%s): %d groups go back", line.name, why, len(lost))
        for claim in lost:
            self._fail(claim, WorkerLost(f"generation worker {line.name} is lost: {why}"))
        if not self._lines:
            for number in list(self._waiting):
                self._fail(self._claims[number], self._none_left())

    async def _end_leases(self) -> None:
        """A line that ends is seen at once; this is for workers that stand still and for networks that are cut."""
        while True:
            await asyncio.sleep(self.lease_seconds / 4)
            now = self._now()
            for line in list(self._lines):
                if now - line.heard > self.lease_seconds:
                    self._lose(line, f"nothing was heard of it for {self.lease_seconds:g} s")

    # -- claims --------------------------------------------------------------------------------------------------

    def _give(self) -> None:
        while self._waiting and (line := _freest(self._lines)) is not None:
            claim = self._claims[self._waiting.popleft()]
            claim.worker = line
            line.claims.add(claim.number)
            wire.send(line.writer, "group", claim.number, claim.step, claim.group)

    def _end(self, claim: _Claim) -> None:
        del self._claims[claim.number]
        if claim.worker is not None:
            claim.worker.claims.discard(claim.number)
        elif claim.number in self._waiting:  # given up by whoever asked
            self._waiting.remove(claim.number)

    def _fail(self, claim: _Claim, error: VimeError) -> None:
        if not claim.answer.done():
            claim.answer.set_exception(error)

    def _refuse_without_workers(self) -> None:
        if self._had_workers and not self._lines:
            raise self._none_left()

    def _none_left(self) -> MachineError:
        return MachineError(
            "all generation workers are lost",
            hint="the same command with --load resumes; the log says what became of them",
        )

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _freest(lines: Iterable[_Line]) -> _Line | None:
    """Who has most room; the first of equals. None: nobody has any."""
    room = {line: line.capacity - len(line.claims) for line in lines}
    return max((line for line in room if room[line] > 0), key=lambda line: room[line], default=None)
