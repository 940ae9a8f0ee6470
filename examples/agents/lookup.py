"""A worked agent for a CPU: the toy's task with the word hidden behind a tool.

The user's message is a word that ends with g, as in `rABCDg=`; an answer that begins with g, as the toy's does when it is right, calls the tool `get`
(`letter_tool`). Its result is another word, `rVWXYZ=`, and the next answer should be `ZYXWV`. The toy's starting checkpoint calls in two of three
answers and gets 3 % of the letters after a call right: it has never seen a second turn. `examples/agents/run.sh` is the whole command line.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Any

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
    client = _client(asyncio.get_running_loop()).with_options(base_url=f"{address}/v1")
    messages: list[Any] = [{"role": "user", "content": str(sample.prompt)}]
    first = (await client.chat.completions.create(model="policy", messages=messages, tools=_TOOLS)).choices[0].message
    if not first.tool_calls:
        return 0.0
    word = await sandbox.read_file("word")
    messages += [
        first.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": f"r{word}="},
    ]
    last = (await client.chat.completions.create(model="policy", messages=messages, tools=_TOOLS)).choices[0].message
    said = last.content or ""
    right = sum(a == b for a, b in zip(said, answer, strict=False)) if len(said) == len(answer) else 0
    return _FOR_CALLING + (1 - _FOR_CALLING) * right / len(answer)


@functools.cache
def _client(loop: asyncio.AbstractEventLoop) -> Any:
    """One for all runs of an event loop, whose connections are shared."""
    from openai import AsyncOpenAI

    return AsyncOpenAI(api_key="none", base_url="http://127.0.0.1", max_retries=2, timeout=120.0)
