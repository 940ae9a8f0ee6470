"""OpenAI's chat completions: request to messages, turn to response, whole or as events. Pure."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

from vime.agents.session import Turn


def response(turn: Turn, model: str) -> dict[str, Any]:
    """The body of an answer."""
    return _head(model, "chat.completion") | {
        "choices": [{"index": 0, "message": _message(turn), "finish_reason": turn.reason, "logprobs": None}],
        "usage": usage(turn),
    }


def events(turn: Turn, model: str) -> Iterator[str]:
    """The same as server-sent events, the answer in one piece."""
    head = _head(model, "chat.completion.chunk")
    delta = _message(turn)
    if "tool_calls" in delta:
        delta["tool_calls"] = [one | {"index": number} for number, one in enumerate(delta["tool_calls"])]
    yield _event(head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    yield _event(head | {"choices": [{"index": 0, "delta": {}, "finish_reason": turn.reason}]})
    yield _event(head | {"choices": [], "usage": usage(turn)})
    yield "data: [DONE]\n\n"


def error(message: str, kind: str = "invalid_request_error") -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def usage(turn: Turn) -> dict[str, int]:
    total = turn.prompt_tokens + turn.completion_tokens
    return {"prompt_tokens": turn.prompt_tokens, "completion_tokens": turn.completion_tokens, "total_tokens": total}


def _message(turn: Turn) -> dict[str, Any]:
    calls = turn.message.get("tool_calls")
    message = {"role": "assistant", "content": turn.message["content"] or (None if calls else "")}
    return message | ({"tool_calls": calls} if calls else {})


def _head(model: str, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"
