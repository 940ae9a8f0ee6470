"""Tokens in, tokens out over HTTP: the `EngineClient` that the rollout uses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
import weakref
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import aiohttp

from vime.engine.router import Router
from vime.engine.wire import ROUTE, engine_request_id, parse_answer, parse_scores, request_body, scoring_body
from vime.errors import EngineError, EngineTimeout
from vime.rollout.client import Generation, SamplingParams

#: Seconds for a call that only asks the engine to abort.
_ABORT_SECONDS = 10.0
#: Seconds that an idle connection is kept. A server closes it after 5 unless told otherwise, and a request that meets the
#: closing of its connection fails; our own servers keep it longer (`command`).
_IDLE_SECONDS = 3.0


class HttpEngineClient:
    """One pooled session an event loop; any number of requests at once."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self._sessions: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, aiohttp.ClientSession] = (
            weakref.WeakKeyDictionary()
        )
        #: session id -> {request id: URL}
        self._running: defaultdict[str, dict[str, str]] = defaultdict(dict)

    async def generate(
        self, token_ids: list[int], sampling_params: SamplingParams, *, session_id: str | None, timeout: float | None
    ) -> Generation:
        group = await self.generate_group(
            token_ids, replace(sampling_params, n=1), session_id=session_id, timeout=timeout
        )
        return group[0]

    async def generate_group(
        self, token_ids: list[int], sampling_params: SamplingParams, *, session_id: str | None, timeout: float | None
    ) -> list[Generation]:
        url = self.router.acquire(session_id)
        request_id = uuid.uuid4().hex
        headers = {"X-Request-Id": request_id} | ({"X-Session-Id": session_id} if session_id else {})
        start = time.perf_counter()
        try:
            with self._registered(session_id or request_id, request_id, url):
                async with asyncio.timeout(timeout):
                    answer = await self._post(url + ROUTE, request_body(token_ids, sampling_params), headers)
        except TimeoutError as error:
            await self._abort_at(url, [request_id])
            raise EngineTimeout(f"no answer within {timeout:g} s; the request was aborted", where=url) from error
        except asyncio.CancelledError:
            # The caller gave up: the engine must not go on computing for nobody.
            await asyncio.shield(self._abort_at(url, [request_id]))
            raise
        finally:
            self.router.release(url)
        return parse_answer(answer, sampling_params, url, time.perf_counter() - start)

    async def prompt_log_probs(
        self, token_ids: list[int], start: int, temperature: float, *, timeout: float | None
    ) -> list[float]:
        """Log-probabilities of ``token_ids[start:]`` at `temperature`; see `FrozenModel.log_probs`. Raises as `generate`."""
        url = self.router.acquire(None)
        try:
            async with asyncio.timeout(timeout):
                answer = await self._post(url + ROUTE, scoring_body(token_ids, temperature), {})
        except TimeoutError as error:
            raise EngineTimeout(f"no answer within {timeout:g} s", where=url) from error
        finally:
            self.router.release(url)
        return parse_scores(answer, token_ids, start, temperature, url)

    async def abort(self, session_ids: Sequence[str] | None) -> None:
        chosen = list(self._running) if session_ids is None else [s for s in session_ids if s in self._running]
        by_url: defaultdict[str, list[str]] = defaultdict(list)
        for session_id in chosen:
            for request_id, url in self._running[session_id].items():
                by_url[url].append(request_id)
        await asyncio.gather(*(self._abort_at(url, requests) for url, requests in by_url.items()))

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()

    @contextlib.contextmanager
    def _registered(self, session_id: str, request_id: str, url: str) -> Any:
        self._running[session_id][request_id] = url
        try:
            yield
        finally:
            running = self._running[session_id]
            del running[request_id]
            if not running:
                del self._running[session_id]

    async def _post(self, url: str, body: dict[str, Any], headers: dict[str, str]) -> Any:
        try:
            async with self._session().post(url, json=body, headers=headers) as reply:
                text = await reply.read()
                if reply.status != 200:
                    raise EngineError(f"answered {reply.status}: {text[:300].decode(errors='replace')}", where=url)
                return json.loads(text)
        except (aiohttp.ClientError, OSError) as error:
            raise EngineError(f"connection failed: {error or type(error).__name__}", where=url) from error

    async def _abort_at(self, url: str, request_ids: list[str]) -> None:
        """Behind a router process the engine is not known, so each is told; unknown ids are ignored there."""
        targets = [url] if url in self.router.engines() else self.router.engines()
        body = {"request_ids": [engine_request_id(one) for one in request_ids]}
        for target in targets:
            # A dead engine has nothing left to abort; its owner replaces it.
            with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with asyncio.timeout(_ABORT_SECONDS), self._session().post(target + "/abort_requests", json=body):
                    pass

    def _session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None or session.closed:
            # Deadlines are ours, a request at a time; the number in flight is the rollout's decision.
            session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_SECONDS),
                timeout=aiohttp.ClientTimeout(total=None),
            )
            self._sessions[loop] = session
        return session


@contextlib.asynccontextmanager
async def open_client(router: Router) -> AsyncIterator[HttpEngineClient]:
    """A client whose connections are closed at the end."""
    client = HttpEngineClient(router)
    try:
        yield client
    finally:
        await client.close()
