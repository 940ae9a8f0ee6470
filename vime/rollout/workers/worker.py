"""A worker's end of the line: answers groups, obeys orders, and says that it lives. Ends when the line does."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from collections.abc import Awaitable, Callable
from typing import Any

from vime.data.protocol import Group
from vime.errors import HookError, VimeError
from vime.rollout.workers import wire


async def work(
    address: tuple[str, int],
    key: str,
    name: str,
    capacity: int,
    lease_seconds: float,
    answer: Callable[[int, Group], Awaitable[Group]],
    obey: Callable[..., Any],
) -> None:
    """Join the desk at `address` and answer up to `capacity` groups at a time until it closes the line.

    `answer(step, group)` and `obey(word, ...)`, which may be awaited, run on this loop; a loop that is blocked for longer than the lease counts as lost.
    """
    reader, writer = await asyncio.open_connection(*address)
    wire.send_key(writer, key)
    wire.send(writer, name, capacity)
    running: set[asyncio.Task[None]] = set()

    async def one(number: int, step: int, group: Group) -> None:
        try:
            wire.send(writer, "answer", number, await answer(step, group))
        except Exception as error:  # belongs to whoever waits for the batch
            wire.send(writer, "error", number, _portable(error))

    async def confirm(number: int, result: Awaitable[Any]) -> None:
        await result
        if number:
            wire.send(writer, "done", number)

    def order(number: int, word: str, given: list[Any]) -> None:
        """Begun at once, so that orders take effect in their order."""
        result = obey(word, *given)
        if inspect.isawaitable(result):
            start(asyncio.create_task(confirm(number, result)))
        elif number:
            wire.send(writer, "done", number)

    async def beat() -> None:
        while True:
            await asyncio.sleep(lease_seconds / 4)
            wire.send(writer, "alive")

    def start(task: asyncio.Task[None]) -> None:
        running.add(task)
        task.add_done_callback(running.discard)

    start(asyncio.create_task(beat()))
    try:
        while (message := await wire.receive(reader)) is not None:
            match message:
                case ("group", number, step, group):
                    start(asyncio.create_task(one(number, step, group)))
                case ("order", number, word, *given):
                    order(number, word, given)
    finally:
        for task in running:
            task.cancel()
        writer.close()


def _portable(error: Exception) -> Exception:
    """`error`, or what it says where it cannot travel."""
    if isinstance(error, VimeError):
        return error
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return HookError(f"{type(error).__name__}: {error}")
    return error
