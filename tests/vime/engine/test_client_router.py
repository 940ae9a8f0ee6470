"""The client against a local HTTP server that answers as the token endpoint does, and the routers."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from vime.engine.client import HttpEngineClient, open_client
from vime.engine.router import RouterProcess, consistent_hash, least_loaded, local_router, power_of_two
from vime.errors import EngineError, EngineTimeout
from vime.rollout.client import EngineClient, SamplingParams

PARAMS = SamplingParams(max_tokens=4)


class Engine:
    """Counts what reaches it. Prompts that begin with 1 are answered at once, others when they are aborted."""

    def __init__(self) -> None:
        self.aborted: list[str] = []
        self.waiting: dict[str, asyncio.Event] = {}
        self.arrived = asyncio.Event()

    async def generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        name = "generate-tokens-" + request.headers["X-Request-Id"]
        finish = "stop"
        if body["token_ids"][0] != 1:
            self.waiting[name] = asyncio.Event()
            self.arrived.set()
            await self.waiting[name].wait()
            finish = "abort"
        choices = [
            {
                "index": i,
                "token_ids": [i + 1],
                "finish_reason": finish,
                "logprobs": {"content": [{"token_id": i + 1, "logprob": -0.5}]},
            }
            for i in range(body["sampling_params"]["n"])
        ]
        return web.json_response({"choices": choices})

    async def abort(self, request: web.Request) -> web.Response:
        for name in (await request.json())["request_ids"]:
            self.aborted.append(name)
            if name in self.waiting:
                self.waiting[name].set()
        return web.json_response({})


@asynccontextmanager
async def serving(engines: int = 1) -> AsyncIterator[tuple[HttpEngineClient, list[Engine]]]:
    servers, urls, found = [], [], []
    for _ in range(engines):
        engine = Engine()
        app = web.Application()
        app.router.add_post("/inference/v1/generate", engine.generate)
        app.router.add_post("/abort_requests", engine.abort)
        app.router.add_get("/health", lambda _: web.Response())
        server = web.AppRunner(app, shutdown_timeout=0.1)
        await server.setup()
        site = web.TCPSite(server, "127.0.0.1", 0)
        await site.start()
        servers.append(server)
        urls.append(f"http://127.0.0.1:{server.addresses[0][1]}")
        found.append(engine)
    router = local_router("least_loaded")
    router.set_engines(urls)
    async with open_client(router) as client:
        yield client, found
    for server in servers:
        await server.cleanup()


def run(scenario: Any) -> Any:
    return asyncio.run(asyncio.wait_for(scenario(), 30))


def test_client_is_what_the_rollout_asks_for() -> None:
    async def scenario() -> None:
        async with serving() as (client, _):
            assert isinstance(client, EngineClient)
            group = await client.generate_group([1], SamplingParams(max_tokens=4, n=3), session_id="s", timeout=5)
            assert [one.token_ids for one in group] == [[1], [2], [3]]
            one = await client.generate([1], SamplingParams(max_tokens=4, n=3), session_id=None, timeout=None)
            assert one.token_ids == [1]
            assert one.meta["e2e_s"] > 0

    run(scenario)


def test_a_request_that_takes_too_long_is_aborted_in_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with serving() as (client, (engine,)):
            task = asyncio.ensure_future(client.generate([2], PARAMS, session_id="s", timeout=10))
            await engine.arrived.wait()
            # The limit passes only now: on a stalled machine one that is short enough to wait for may pass before the request arrives.
            loop = asyncio.get_running_loop()
            clock = loop.time
            monkeypatch.setattr(loop, "time", lambda: clock() + 10)
            with pytest.raises(EngineTimeout, match="no answer within"):
                await task
            assert engine.aborted == list(engine.waiting)
            assert client.router.acquire(None)  # its place was given back

    run(scenario)


def test_a_cancelled_request_is_aborted_too() -> None:
    async def scenario() -> None:
        async with serving() as (client, (engine,)):
            task = asyncio.ensure_future(client.generate([2], PARAMS, session_id="s", timeout=None))
            await engine.arrived.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert engine.aborted == list(engine.waiting)

    run(scenario)


def test_abort_ends_the_named_sessions_and_no_others() -> None:
    """Public report vime#410: one abort ended everybody's requests."""

    async def scenario() -> None:
        async with serving(engines=2) as (client, engines):
            tasks = {
                name: asyncio.ensure_future(client.generate([2], PARAMS, session_id=name, timeout=None))
                for name in "abc"
            }
            while sum(len(engine.waiting) for engine in engines) < 3:
                await asyncio.sleep(0)
            await client.abort(["a", "unknown"])
            assert (await tasks["a"]).finish_reason == "abort"
            assert not tasks["b"].done()
            assert not tasks["c"].done()
            await client.abort(None)
            assert [(await tasks[name]).finish_reason for name in "bc"] == ["abort", "abort"]
            assert sum(len(engine.aborted) for engine in engines) == 3

    run(scenario)


def test_a_dead_engine_is_an_engine_error() -> None:
    async def scenario() -> None:
        router = local_router("least_loaded")
        router.set_engines(["http://127.0.0.1:9"])
        async with open_client(router) as client:
            with pytest.raises(EngineError, match="connection failed"):
                await client.generate([1], PARAMS, session_id=None, timeout=5)
        router.set_engines([])
        with pytest.raises(EngineError, match="no engine is left"):
            router.acquire(None)

    run(scenario)


def test_least_loaded_spreads_evenly_and_releases() -> None:
    router = local_router("least_loaded")
    router.set_engines(["a", "b", "c"])
    taken = [router.acquire(None) for _ in range(6)]
    assert sorted(taken) == ["a", "a", "b", "b", "c", "c"]
    router.release("b")
    assert router.acquire(None) == "b"
    router.set_engines(["b", "d"])  # c and a were replaced; what was in flight there does not count
    router.release("a")
    assert router.acquire(None) == "d"


@given(st.lists(st.text(min_size=1), min_size=2, max_size=8, unique=True), st.text(min_size=1))
def test_sessions_stay_where_they_were_when_another_engine_is_lost(urls: list[str], session: str) -> None:
    load = dict.fromkeys(urls, 0)
    home = consistent_hash(load, session)
    for lost in urls:
        if lost != home:
            assert consistent_hash({url: 0 for url in urls if url != lost}, session) == home


@given(st.dictionaries(st.text(min_size=1), st.integers(0, 100), min_size=1))
def test_policies_choose_an_engine_that_exists(load: dict[str, int]) -> None:
    assert load[least_loaded(load, None)] == min(load.values())
    assert power_of_two(load, None) in load


def test_round_robin_takes_turns_and_cache_aware_needs_the_router_package() -> None:
    router = local_router("round_robin")
    router.set_engines(["a", "b"])
    assert [router.acquire(None) for _ in range(4)] == ["a", "b", "a", "b"]
    with pytest.raises(EngineError, match="needs vllm-router"):
        local_router("cache_aware")


@pytest.mark.skipif(importlib.util.find_spec("vllm_router") is None, reason="vllm-router is not installed")
def test_the_router_process_spreads_and_follows_replacements(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(engines=2) as (client, engines):
            urls = client.router.engines()
            router = RouterProcess("round_robin", 10, tmp_path / "router.log")
            try:
                await asyncio.to_thread(router.set_engines, urls[:1])
                async with open_client(router) as through:
                    assert (await through.generate([1], PARAMS, session_id="s", timeout=10)).token_ids == [1]
                    await asyncio.to_thread(router.set_engines, urls[1:])
                    task = asyncio.ensure_future(through.generate([2], PARAMS, session_id="t", timeout=30))
                    await engines[1].arrived.wait()
                    assert not engines[0].waiting
                    await through.abort(["t"])
                    assert (await task).finish_reason == "abort"
            finally:
                router.stop()

    run(scenario)
