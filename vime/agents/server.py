"""The endpoints that agents talk to: one base address a session, on a loopback port of this process.

<address>/sessions/<id>/v1/chat/completions   OpenAI's client with base_url <address>/sessions/<id>/v1
<address>/sessions/<id>/v1/messages           Anthropic's client with base_url <address>/sessions/<id>
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from vime.agents import anthropic_messages, messages, openai_chat
from vime.agents.session import Session, Turn
from vime.errors import EngineError, UsageError, VimeError

_LARGEST_BODY = 64 << 20
_IDLE_SECONDS = 24 * 3600.0
_MODEL = "policy"


class AgentServer:
    """Runs on the event loop that it is started on. Whoever can reach the port can use a session whose id it knows."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.host = host
        self.address = ""
        self._sessions: dict[str, Session] = {}
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        """Listen on a free port. Returns the address."""
        app = web.Application(client_max_size=_LARGEST_BODY)
        app.router.add_post("/sessions/{id}/v1/chat/completions", self._chat)
        app.router.add_post("/sessions/{id}/v1/messages", self._messages)
        app.router.add_get("/sessions/{id}/v1/models", self._models)
        # Clients keep their connections between steps, and one that is closed just when it is used again is an error to them.
        self._runner = web.AppRunner(app, access_log=None, keepalive_timeout=_IDLE_SECONDS)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.address = f"http://{host}:{port}"
        return self.address

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def open(self, session: Session) -> str:
        """Make `session` reachable. Returns its base address."""
        self._sessions[session.id] = session
        return f"{self.address}/sessions/{session.id}"

    def close(self, session: Session) -> None:
        self._sessions.pop(session.id, None)

    async def _models(self, request: web.Request) -> web.Response:
        self._session(request)
        return web.json_response({"object": "list", "data": [{"id": _MODEL, "object": "model", "owned_by": "vime"}]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        try:
            session, body = self._session(request), await _body(request)
            said = messages.from_openai(body.get("messages"))
            limit = messages.limit_of(body.get("max_completion_tokens"), body.get("max_tokens"))
            turn = await session.complete(said, messages.tools_from_openai(body.get("tools")), limit)
        except (UsageError, EngineError) as error:
            return web.json_response(openai_chat.error(_line(error)), status=_status(error))
        model = str(body.get("model") or _MODEL)
        if body.get("stream"):
            return await _stream(request, openai_chat.events(turn, model))
        return web.json_response(openai_chat.response(turn, model))

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        try:
            session, body = self._session(request), await _body(request)
            said = messages.from_anthropic(body.get("system"), body.get("messages"))
            tools = messages.tools_from_anthropic(body.get("tools"))
            turn: Turn = await session.complete(said, tools, messages.limit_of(body.get("max_tokens")))
        except (UsageError, EngineError) as error:
            return web.json_response(anthropic_messages.error(_line(error)), status=_status(error))
        model = str(body.get("model") or _MODEL)
        if body.get("stream"):
            return await _stream(request, anthropic_messages.events(turn, model))
        return web.json_response(anthropic_messages.response(turn, model))

    def _session(self, request: web.Request) -> Session:
        session = self._sessions.get(request.match_info["id"])
        if session is None:
            raise UsageError("no such session: it has ended, or never was")
        return session


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body = json.loads(await request.read())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise UsageError("the body is no object")
    return body


async def _stream(request: web.Request, events: Iterator[str]) -> web.StreamResponse:
    reply = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await reply.prepare(request)
    for event in events:
        await reply.write(event.encode())
    await reply.write_eof()
    return reply


def _line(error: VimeError) -> str:
    return f"{error} ({error.hint})" if error.hint else str(error)


def _status(error: Exception) -> int:
    return 400 if isinstance(error, UsageError) else 502
