"""A worked agent for a CPU: the toy's task with the word hidden behind a tool.

The user's message is a word that ends with g, as in `rABCDg=`; an answer that begins with g, as the toy's does when it is right, calls the tool `get`
(`letter_tool`). Its result is another word, `rVWXYZ=`, and the next answer should be `ZYXWV`. The toy's starting checkpoint calls in two of three
answers and gets 3 % of the letters after a call right: it has never seen a second turn. `examples/agents/run.sh` is the whole command line.
"""

from __future__ import annotations

from typing import Any

import aiohttp

from vime.agents.sandbox import Sandbox
from vime.sample import Sample

_TOOLS: Any = [
    {"type": "function", "function": {"name": "get", "description": "the word", "parameters": {"type": "object"}}}
]
_FOR_CALLING = 0.2


def letter_tool(text: str) -> tuple[str, list[tuple[str, str]]]:
    """--agent-tool-parser: an answer that begins with g calls `get`."""
    return ("", [("get", "{}")]) if text.startswith("g") else (text, [])


async def find_word(address: str, sample: Sample, sandbox: Sandbox) -> float:
    """--agent-path: 0.2 for calling the tool, and up to 0.8 for the letters that are right in the answer after it."""
    answer = str(sample.label)
    await sandbox.write_file("word", answer[::-1])
    messages: list[Any] = [{"role": "user", "content": str(sample.prompt)}]
    first = await _said(address, messages)
    if not first.get("tool_calls"):
        return 0.0
    word = await sandbox.read_file("word")
    messages += [first, {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": f"r{word}="}]
    said = (await _said(address, messages))["content"] or ""
    right = sum(a == b for a, b in zip(said, answer, strict=False)) if len(said) == len(answer) else 0
    return _FOR_CALLING + (1 - _FOR_CALLING) * right / len(answer)


async def _said(address: str, messages: list[Any]) -> Any:
    """The policy's next message. OpenAI's client would do, at several times the processor's time for a request: here that was most of a step."""
    body = {"model": "policy", "messages": messages, "tools": _TOOLS}
    async with aiohttp.request("POST", f"{address}/v1/chat/completions", json=body) as reply:
        reply.raise_for_status()
        return (await reply.json())["choices"][0]["message"]
