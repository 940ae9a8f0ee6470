"""What a rollout needs beside its arguments: the engine client, the tokenizer, and the limit on requests in flight.

Hooks keep slime's signatures, which have no room for a client; they reach it through ``current()``.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vime.errors import VimeError
from vime.rollout.client import EngineClient, Generation, SamplingParams
from vime.rollout.frozen import FrozenModel

if TYPE_CHECKING:
    from vime.rollout.group import GroupTask
    from vime.rollout.pool.pool import Pool
    from vime.rollout.pool.store import Store
    from vime.rollout.workers.fleet import RemoteTask


class Slots:
    """A first-come first-served limit that hands out several places at once. One that asks for more than all gets all."""

    def __init__(self, places: int) -> None:
        self.places = places
        self._free = places
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def take(self, count: int) -> AsyncIterator[None]:
        count = min(count, self.places)
        if self._waiting or self._free < count:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append((count, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._give(count)  # the places had been handed over when the waiter was cancelled
                raise
        else:
            self._free -= count
        try:
            yield
        finally:
            self._give(count)

    def _give(self, count: int) -> None:
        self._free += count
        while self._waiting and (self._waiting[0][1].done() or self._waiting[0][0] <= self._free):
            wanted, turn = self._waiting.popleft()
            if not turn.done():
                self._free -= wanted
                turn.set_result(None)


class RolloutContext:
    """`serving_version` is the version of the newest weights in the engines, where the caller knows it."""

    def __init__(
        self, args: Namespace, client: EngineClient, tokenizer: Any, serving_version: int | None = None
    ) -> None:
        self.args = args
        self.client = client
        self.tokenizer = tokenizer
        self.serving_version = serving_version
        self.slots = Slots(args.vllm_server_concurrency * max(1, args.model_groups[0].count))
        #: Frozen models that are served beside the policy, by their names in --vllm-config.
        self.models = {group.name: FrozenModel(group.name) for group in args.model_groups[1:]}
        #: Where caches outlive an update, a request must not start on a prefix that older weights computed.
        self.salted = args.flush_cache_interval != 1
        self.special_ids = frozenset(tokenizer.all_special_ids)
        #: Set while a step closes: no new request is sent, running ones end with what they have.
        self.aborting = False
        #: Set by the manager: where the pool keeps its work, and the pool itself once the first step began.
        self.store: Store | None = None
        self.pool: Pool | None = None
        self._requests = 0
        self._open, self._idle = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._idle.set()

    def pause(self) -> None:
        """Requests that are not yet sent wait from now on."""
        self._open.clear()

    async def paused(self) -> None:
        """Wait until whoever sends requests for this run knows that it is paused."""

    def resume(self) -> None:
        self._open.set()

    def group_task(self, step: int) -> GroupTask | RemoteTask:
        """What answers the groups of training step `step`."""
        from vime.rollout.group import GroupTask
        from vime.rollout.sampling import train_sampling

        return GroupTask.for_training(self.args, self, train_sampling(self.args), step)

    async def idle(self) -> None:
        """Wait until no request is running. Each has its own deadline."""
        await self._idle.wait()

    async def generate(self, token_ids: list[int], params: SamplingParams, session_id: str | None = None) -> Generation:
        """One answer within the limits of the run; ended at once, with no tokens, while the step closes. Raises as EngineClient.generate."""
        return (await self.generate_many(token_ids, params, session_id))[0]

    async def generate_many(
        self, token_ids: list[int], params: SamplingParams, session_id: str | None = None
    ) -> list[Generation]:
        """params.n answers to one prompt."""
        async with self.slots.take(params.n):
            await self._open.wait()
            if self.aborting:
                return [Generation([], [], "abort") for _ in range(params.n)]
            if self.salted:
                params = replace(params, cache_salt=str(self.serving_version))
            with self._counted():
                timeout = self.args.rollout_request_timeout
                if params.n == 1:
                    return [await self.client.generate(token_ids, params, session_id=session_id, timeout=timeout)]
                return await self.client.generate_group(token_ids, params, session_id=session_id, timeout=timeout)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._requests += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._requests -= 1
            if not self._requests:
                self._idle.set()

    def text(self, token_ids: list[int], finished: bool) -> str:
        """The text of an answer. The end token of a finished one is not part of it."""
        if finished and token_ids and token_ids[-1] in self.special_ids:
            token_ids = token_ids[:-1]
        return str(self.tokenizer.decode(token_ids, skip_special_tokens=self.args.rollout_skip_special_tokens))


_current: RolloutContext | None = None


def install(context: RolloutContext | None) -> None:
    """Make `context` the one of this process (None: none)."""
    global _current
    _current = context


def current() -> RolloutContext:
    """The context of this process. Raises VimeError outside a rollout."""
    if _current is None:
        raise VimeError(
            "no rollout context",
            hint="vime.rollout.context.install(RolloutContext(args, client, tokenizer)) comes first",
        )
    return _current
