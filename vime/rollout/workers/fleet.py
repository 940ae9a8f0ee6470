"""The rollout context of a manager whose groups are answered by workers: what it does to requests, all workers do to theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vime.data.protocol import Group
from vime.rollout.client import EngineClient, Generation, SamplingParams
from vime.rollout.context import RolloutContext
from vime.rollout.workers.desk import Desk


class FleetContext(RolloutContext):
    """Evaluation is still answered in this process."""

    def __init__(self, args: Any, client: EngineClient, tokenizer: Any, desk: Desk) -> None:
        self.desk = desk
        super().__init__(args, _Client(client, desk), tokenizer)

    @property
    def aborting(self) -> bool:
        return self._aborting

    @aborting.setter
    def aborting(self, value: bool) -> None:
        self._aborting = value
        self.desk.tell("aborting", value)

    def group_task(self, step: int) -> RemoteTask:
        return RemoteTask(self.desk, step)

    def pause(self) -> None:
        super().pause()
        self.desk.tell("open", False, self.serving_version)

    async def paused(self) -> None:
        await self.desk.ask("paused")

    def resume(self) -> None:
        super().resume()
        self.desk.tell("open", True, self.serving_version)

    async def idle(self) -> None:
        await super().idle()
        await self.desk.ask("idle")


class RemoteTask:
    """In the place of `GroupTask`: a worker answers."""

    #: No function of a user's touches the manager's samples.
    generate = None

    def __init__(self, desk: Desk, step: int) -> None:
        self.desk, self.step = desk, step

    async def run(self, group: Group) -> Group:
        """Raises WorkerLost, and what `GroupTask.run` raised there."""
        return await self.desk.answer(self.step, group)


class _Client:
    """An engine client whose aborts also reach the workers' requests."""

    def __init__(self, inner: EngineClient, desk: Desk) -> None:
        self._inner, self._desk = inner, desk

    async def generate(
        self, token_ids: list[int], sampling_params: SamplingParams, *, session_id: str | None, timeout: float | None
    ) -> Generation:
        return await self._inner.generate(token_ids, sampling_params, session_id=session_id, timeout=timeout)

    async def generate_group(
        self, token_ids: list[int], sampling_params: SamplingParams, *, session_id: str | None, timeout: float | None
    ) -> list[Generation]:
        return await self._inner.generate_group(token_ids, sampling_params, session_id=session_id, timeout=timeout)

    async def abort(self, session_ids: Sequence[str] | None) -> None:
        await self._inner.abort(session_ids)
        self._desk.tell("abort", standing=False)
