"""An engine in this process that answers what a test says, when a test says."""

from __future__ import annotations

import asyncio
import math
from argparse import Namespace
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from vime.data.source import RolloutDataSourceWithBuffer
from vime.rollout import context as rollout_context
from vime.rollout.client import Generation, SamplingParams
from vime.rollout.context import RolloutContext
from vime.sample import VersionSpan


class FakeEngine:
    """Speaks the EngineClient protocol. `answer(prompt_text, number)` gives the text of answer `number` to a prompt, or raises.

    Requests for which `hold(prompt_text)` is true wait until they are aborted. `version` is what its weights are called.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.answer: Callable[[str, int], str] = lambda prompt, number: str(int(prompt[1:3]))
        self.hold: Callable[[str], bool] = lambda prompt: False
        self.gate: Callable[[str], Awaitable[None]] | None = None
        self.version = "0"
        self.requests: list[tuple[str, SamplingParams, str | None]] = []
        self.served: Counter[str] = Counter()
        self.in_flight = 0
        self.most_in_flight = 0
        self.aborts: list[list[str] | None] = []
        self._held: dict[asyncio.Event, str | None] = {}

    async def generate(
        self, token_ids: list[int], sampling_params: SamplingParams, *, session_id: str | None, timeout: float | None
    ) -> Generation:
        assert sampling_params.n == 1
        return (await self.generate_group(token_ids, sampling_params, session_id=session_id, timeout=timeout))[0]

    async def generate_group(
        self, token_ids: list[int], sampling_params: SamplingParams, *, session_id: str | None, timeout: float | None
    ) -> list[Generation]:
        prompt = self.tokenizer.decode(token_ids)
        self.requests.append((prompt, sampling_params, session_id))
        self.in_flight += sampling_params.n
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            if self.gate is not None:
                await self.gate(prompt)
            else:
                await asyncio.sleep(0)
            if self.hold(prompt):
                released = asyncio.Event()
                self._held[released] = session_id
                await released.wait()
                return [self._generation("ab", sampling_params, aborted=True) for _ in range(sampling_params.n)]
            texts = []
            for _ in range(sampling_params.n):
                texts.append(self.answer(prompt, self.served[prompt]))
                self.served[prompt] += 1
            return [self._generation(text, sampling_params) for text in texts]
        finally:
            self.in_flight -= sampling_params.n

    async def abort(self, session_ids: Sequence[str] | None) -> None:
        self.aborts.append(None if session_ids is None else list(session_ids))
        for event, session in list(self._held.items()):
            if session_ids is None or session in session_ids:
                event.set()
                del self._held[event]

    def _generation(self, text: str, params: SamplingParams, aborted: bool = False) -> Generation:
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        reason = "abort" if aborted else "length"
        if not aborted and len(ids) < params.max_tokens:
            ids, reason = [*ids, self.tokenizer.eos_token_id], "stop"
        ids = ids[: params.max_tokens]
        return Generation(
            ids,
            [-math.log(2)] * len(ids),
            reason,
            (VersionSpan(self.version, 0, len(ids)),),
            meta={"prompt_tokens": 4.0},
        )


@pytest.fixture
def engine(tokenizer: Any) -> FakeEngine:
    return FakeEngine(tokenizer)


@pytest.fixture
def start(
    engine: FakeEngine, tokenizer: Any, make_args: Callable[..., Namespace], monkeypatch: pytest.MonkeyPatch
) -> Any:
    """start(*flags) -> (args, data source) with the fake engine behind the installed context."""

    def make(*flags: str, **attributes: Any) -> tuple[Namespace, RolloutDataSourceWithBuffer]:
        args = make_args(*flags)
        for name, value in attributes.items():
            setattr(args, name, value)
        rollout_context.install(RolloutContext(args, engine, tokenizer))
        return args, RolloutDataSourceWithBuffer(args)

    yield make
    rollout_context.install(None)
