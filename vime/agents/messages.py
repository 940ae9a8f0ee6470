"""Messages of a conversation in one form, OpenAI's chat form, whatever the client speaks. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from vime.errors import UsageError

#: {"role", "content": text, "tool_calls"?: [{"id", "type": "function", "function": {"name", "arguments": JSON text}}], "tool_call_id"?, "reasoning"?}
Message = dict[str, Any]

ROLES = ("system", "user", "assistant", "tool")


def text_of(content: Any) -> str:
    """The text of a content: a text, None, or parts of type text. Raises UsageError for other parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise UsageError(f"message content is a {type(content).__name__}")
    parts = []
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") not in ("text", "input_text", "output_text"):
            raise UsageError(
                f"content of type {part.get('type') if isinstance(part, Mapping) else part!r} is not supported"
            )
        parts.append(str(part.get("text", "")))
    return "".join(parts)


def from_openai(messages: Any) -> list[Message]:
    """Messages of a chat completion request. Raises UsageError for what is none."""
    if not isinstance(messages, list) or not messages:
        raise UsageError("messages must be a list with at least one message")
    found: list[Message] = []
    for number, given in enumerate(messages):
        if not isinstance(given, Mapping) or given.get("role") not in (*ROLES, "developer"):
            raise UsageError(f"message {number} has no role of {', '.join(ROLES)}")
        role = "system" if given["role"] == "developer" else given["role"]
        message: Message = {"role": role, "content": text_of(given.get("content"))}
        if given.get("tool_calls"):
            message["tool_calls"] = [_call(one) for one in given["tool_calls"]]
        if given.get("tool_call_id"):
            message["tool_call_id"] = given["tool_call_id"]
        found.append(message)
    return found


def from_anthropic(system: Any, messages: Any) -> list[Message]:
    """Messages of a messages request; tool results become messages of their own, in their order. Raises UsageError for what is none."""
    if not isinstance(messages, list) or not messages:
        raise UsageError("messages must be a list with at least one message")
    found: list[Message] = [{"role": "system", "content": text_of(system)}] if system else []
    for number, given in enumerate(messages):
        if not isinstance(given, Mapping) or given.get("role") not in ("user", "assistant"):
            raise UsageError(f"message {number} has no role of user, assistant")
        blocks = given.get("content")
        if isinstance(blocks, str):
            blocks = [{"type": "text", "text": blocks}]
        texts: list[Any] = []
        calls: list[Any] = []
        for block in blocks or ():
            match block.get("type"):
                case "tool_use":
                    arguments = json.dumps(block.get("input") or {})
                    calls.append(
                        _call({"id": block.get("id"), "function": {"name": block.get("name"), "arguments": arguments}})
                    )
                case "tool_result":
                    content = text_of(block.get("content"))
                    found.append({"role": "tool", "content": content, "tool_call_id": block.get("tool_use_id")})
                case "thinking" | "redacted_thinking":
                    continue
                case _:
                    texts.append(block)
        if texts or calls or given["role"] == "assistant":
            message: Message = {"role": given["role"], "content": text_of(texts)}
            found.append(message | ({"tool_calls": calls} if calls else {}))
    return found


def tools_from_anthropic(tools: Any) -> list[dict[str, Any]] | None:
    """Tool definitions in OpenAI's form."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.get("name"),
                "description": tool.get("description", ""),
                "parameters": tool.get("input_schema") or {},
            },
        }
        for tool in tools or ()
    ] or None


def key(message: Message) -> tuple[Any, ...]:
    """What makes two messages the same: role, text but for blanks at its ends, and calls by name and arguments. Ids do not count."""
    calls = tuple(
        (one["function"]["name"], _canonical(one["function"]["arguments"])) for one in message.get("tool_calls") or ()
    )
    return message["role"], message["content"].strip(), calls


def for_template(message: Message) -> Message:
    """The message as chat templates expect it: arguments as a mapping where they are JSON, else as the model wrote them."""
    if not message.get("tool_calls"):
        return message
    calls = [
        one | {"function": one["function"] | {"arguments": _parsed(one["function"]["arguments"])}}
        for one in message["tool_calls"]
    ]
    return message | {"tool_calls": calls}


def _call(given: Any) -> dict[str, Any]:
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise UsageError("a tool call without a function name")
    arguments = function.get("arguments", "{}")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments)
    return {"id": given.get("id"), "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _canonical(arguments: str) -> str:
    parsed = _parsed(arguments)
    return arguments if isinstance(parsed, str) else json.dumps(parsed, sort_keys=True)
