"""Anthropic's messages: turn to response, whole or as events. Pure."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

from vime.agents.session import Turn

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def response(turn: Turn, model: str) -> dict[str, Any]:
    """The body of an answer. Arguments that are no JSON are passed on as text under ``_malformed``, since the format wants an object."""
    blocks: list[dict[str, Any]] = (
        [{"type": "text", "text": turn.message["content"]}] if turn.message["content"] else []
    )
    for call in turn.message.get("tool_calls") or ():
        function = call["function"]
        blocks.append(
            {"type": "tool_use", "id": call["id"], "name": function["name"], "input": _object(function["arguments"])}
        )
    return {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": blocks,
        "stop_reason": _REASONS[turn.reason],
        "stop_sequence": None,
        "usage": {"input_tokens": turn.prompt_tokens, "output_tokens": turn.completion_tokens},
    }


def events(turn: Turn, model: str) -> Iterator[str]:
    """The same as server-sent events, each block in one piece."""
    whole = response(turn, model)
    started = whole | {"content": [], "stop_reason": None, "usage": whole["usage"] | {"output_tokens": 0}}
    yield _event("message_start", {"message": started})
    for index, block in enumerate(whole["content"]):
        if block["type"] == "text":
            empty, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            empty = block | {"input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        yield _event("content_block_start", {"index": index, "content_block": empty})
        yield _event("content_block_delta", {"index": index, "delta": delta})
        yield _event("content_block_stop", {"index": index})
    ending = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield _event("message_delta", {"delta": ending, "usage": {"output_tokens": turn.completion_tokens}})
    yield _event("message_stop", {})


def error(message: str, kind: str = "invalid_request_error") -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}


def _object(arguments: str) -> dict[str, Any]:
    try:
        found = json.loads(arguments or "{}")
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"_malformed": arguments}


def _event(name: str, body: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps({'type': name} | body)}\n\n"
