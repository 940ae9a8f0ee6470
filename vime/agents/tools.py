"""Tool calls in what a model wrote. A parser is a function of the text; one of the user's own is named by a dotted path."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

#: Text of an answer -> (what is left as content, calls as (name, arguments as JSON text)).
ToolParser = Callable[[str], tuple[str, list[tuple[str, str]]]]

_HERMES = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)


def hermes(text: str) -> tuple[str, list[tuple[str, str]]]:
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, as Qwen and Hermes models write it.

    Arguments that are no JSON are kept as they were written: the tool says what is wrong with them, and the model can learn from that. A call
    whose name cannot be read stays in the content.
    """
    calls: list[tuple[str, str]] = []

    def take(match: re.Match[str]) -> str:
        call = _read(match[1])
        if call is None:
            return match[0]
        calls.append(call)
        return ""

    content = _HERMES.sub(take, text)
    return (content.strip() if calls else text), calls


def no_tools(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Everything is content."""
    return text, []


PARSERS: dict[str, ToolParser] = {"hermes": hermes, "none": no_tools}


def tool_parser(name: str) -> ToolParser:
    """A parser by name, or by the dotted path of a function. Raises HookError when it cannot be imported."""
    if name in PARSERS:
        return PARSERS[name]
    from vime.hooks import load_object

    parser: ToolParser = load_object(name, "--agent-tool-parser")
    return parser


def _read(body: str) -> tuple[str, str] | None:
    try:
        call: Any = json.loads(body)
        if isinstance(call, dict) and isinstance(call.get("name"), str):
            arguments = call.get("arguments", {})
            return call["name"], arguments if isinstance(arguments, str) else json.dumps(arguments)
    except ValueError:
        pass
    name = re.search(r'"name"\s*:\s*"([^"]+)"', body)
    arguments = re.search(r'"arguments"\s*:\s*(.*?)\s*\}?\s*\Z', body, re.DOTALL)
    return (name[1], arguments[1] if arguments else "") if name else None
