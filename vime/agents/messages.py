"""Messages of a conversation in one form, OpenAI's chat form, whatever the client speaks. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vime.errors import UsageError

#: {"role", "content": text, "tool_calls"?: [{"id", "type": "function", "function": {"name", "arguments": JSON text}}], "tool_call_id"?, "reasoning"?}
Message = dict[str, Any]

_TEXT_PARTS = ("text", "input_text", "output_text")
ROLES = ("system", "user", "assistant", "tool")


def text_of(content: Any) -> str:
    """The text of a content: a text, None, or parts of type text. Raises UsageError for other parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return _unicode(content)
    parts = []
    for part in _listed(content, "message content", "a text or a list of parts"):
        if part.get("type") not in _TEXT_PARTS:
            raise UsageError(f"content of type {part.get('type')!r} is not supported")
        parts.append(_unicode(str(part.get("text", ""))))
    return "".join(parts)


def from_openai(messages: Any) -> list[Message]:
    """Messages of a chat completion request. Raises UsageError for what is none."""
    found: list[Message] = []
    for number, given in enumerate(_messages(messages)):
        if given.get("role") not in (*ROLES, "developer"):
            raise UsageError(f"message {number} has no role of {', '.join(ROLES)}")
        role = "system" if given["role"] == "developer" else given["role"]
        message: Message = {"role": role, "content": text_of(given.get("content"))}
        if given.get("tool_calls"):
            message["tool_calls"] = [_call(one) for one in _listed(given["tool_calls"], "tool_calls")]
        if given.get("tool_call_id"):
            message["tool_call_id"] = given["tool_call_id"]
        found.append(message)
    return found


def from_anthropic(system: Any, messages: Any) -> list[Message]:
    """Messages of a messages request; tool results become messages of their own, in their order. Raises UsageError for what is none."""
    found: list[Message] = [{"role": "system", "content": text_of(system)}] if system else []
    for number, given in enumerate(_messages(messages)):
        if given.get("role") not in ("user", "assistant"):
            raise UsageError(f"message {number} has no role of user, assistant")
        blocks = given.get("content")
        if isinstance(blocks, str):
            blocks = [{"type": "text", "text": blocks}]
        texts: list[Any] = []
        calls: list[Any] = []
        for block in _listed(blocks or [], "message content", "a text or a list of blocks"):
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
    if not found:
        raise UsageError("the messages say nothing")
    return found


def tools_from_anthropic(tools: Any) -> list[dict[str, Any]] | None:
    """Tool definitions in OpenAI's form. Raises UsageError for what is none."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.get("name"),
                "description": tool.get("description", ""),
                "parameters": tool.get("input_schema") or {},
            },
        }
        for tool in _listed(tools or [], "tools")
    ] or None


def tools_from_openai(tools: Any) -> list[dict[str, Any]] | None:
    """Tool definitions as they came. Raises UsageError for what is none."""
    found = _listed(tools or [], "tools")
    if not all(isinstance(tool.get("function"), Mapping) for tool in found):
        raise UsageError("a tool without a function")
    return found or None


def limit_of(*given: Any) -> int | None:
    """The first limit on an answer's tokens that is given, or None. Raises UsageError for what is no number of tokens."""
    limit = next((one for one in given if one is not None), None)
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise UsageError(f"max_tokens is {limit!r}, it must be a whole number of at least 1")
    return limit


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


def _messages(given: Any) -> list[dict[str, Any]]:
    if not isinstance(given, list) or not given:
        raise UsageError("messages must be a list with at least one message")
    return _listed(given, "messages")


def _listed(given: Any, what: str, form: str = "a list of objects") -> list[dict[str, Any]]:
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise UsageError(f"{what} must be {form}")
    return given


def _unicode(text: str) -> str:
    """JSON may hold halves of characters, which no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"a message's text has half a character at {error.start}") from error
    return text


def _call(given: dict[str, Any]) -> dict[str, Any]:
    function = given.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise UsageError("a tool call without a function name")
    arguments = function.get("arguments", "{}")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments)
    return {"id": given.get("id"), "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def _canonical(arguments: str) -> str:
    parsed = _parsed(arguments)
    return arguments if isinstance(parsed, str) else json.dumps(parsed, sort_keys=True)
