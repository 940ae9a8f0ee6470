"""The endpoints, asked by the clients that people use, and an agent as a generate function."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import aiohttp
import pytest

from vime.agents.run import generate
from vime.agents.sandbox import LocalSandbox, Sandbox
from vime.agents.server import AgentServer
from vime.agents.session import Session
from vime.agents.tools import hermes
from vime.cluster import processes
from vime.errors import UsageError
from vime.hooks import load_hook
from vime.rollout.context import current
from vime.rollout.eval_config import eval_datasets
from vime.rollout.sampling import eval_sampling, train_sampling
from vime.sample import Sample, Status

CALL = 'I add.<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>'
BAD_CALL = '<tool_call>{"name": "add", "arguments": {"a": </tool_call>'
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


def talk(args: Namespace, client: Callable[[str, Session], Awaitable[Any]]) -> tuple[Any, Session]:
    """Run `client(address, session)` against a server of its own."""

    async def scenario() -> tuple[Any, Session]:
        server = AgentServer()
        await server.start()
        session = Session(args, Sample(index=0, prompt="q"), train_sampling(args), current(), hermes)
        try:
            return await client(server.open(session), session), session
        finally:
            await server.stop()

    return asyncio.run(scenario())


def _chat(**message: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "q"} | message]}


@pytest.mark.parametrize("stream", [False, True])
def test_openais_client(run: Any, engine: Any, stream: bool) -> None:
    from openai import AsyncOpenAI

    texts = iter([CALL, "4"])
    engine.answer = lambda prompt, number: next(texts)

    async def client(address: str, session: Session) -> Any:
        async with AsyncOpenAI(api_key="x", base_url=f"{address}/v1", max_retries=0) as openai:
            history: list[Any] = [{"role": "user", "content": "2+2?"}]
            if stream:
                parts: dict[str, Any] = {"content": "", "tool_calls": []}
                async for chunk in await openai.chat.completions.create(
                    model="m", messages=history, tools=[TOOL], stream=True
                ):
                    for choice in chunk.choices:
                        parts["content"] += choice.delta.content or ""
                        parts["tool_calls"] += [one.model_dump() for one in choice.delta.tool_calls or ()]
                first: Any = {"role": "assistant"} | parts
                calls = parts["tool_calls"]
            else:
                reply = await openai.chat.completions.create(model="m", messages=history, tools=[TOOL])
                assert reply.choices[0].finish_reason == "tool_calls"
                assert reply.usage is not None
                assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
                first = reply.choices[0].message.model_dump()
                calls = first["tool_calls"]
            assert calls[0]["function"] == {"name": "add", "arguments": '{"a": 2}'}
            history += [first, {"role": "tool", "tool_call_id": calls[0]["id"], "content": "4"}]
            last = await openai.chat.completions.create(model="m", messages=history)
            return last.choices[0].message.content

    said, session = talk(run(), client)
    assert said == "4"
    assert session.drifts == 0
    assert len(session.samples()) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_anthropics_client(run: Any, engine: Any, stream: bool) -> None:
    from anthropic import AsyncAnthropic

    texts = iter([CALL, "4"])
    engine.answer = lambda prompt, number: next(texts)
    tools: Any = [{"name": "add", "description": "", "input_schema": {"type": "object"}}]

    async def client(address: str, session: Session) -> Any:
        async with AsyncAnthropic(api_key="x", base_url=address, max_retries=0) as anthropic:
            history: list[Any] = [{"role": "user", "content": "2+2?"}]
            ask: Any = {"model": "m", "max_tokens": 100, "system": "be brief", "tools": tools}
            if stream:
                async with anthropic.messages.stream(messages=history, **ask) as events:
                    first = await events.get_final_message()
            else:
                first = await anthropic.messages.create(messages=history, **ask)
            assert first.stop_reason == "tool_use"
            text, use = first.content
            assert (text.text, use.name, use.input) == ("I add.", "add", {"a": 2})
            history += [
                {"role": "assistant", "content": [block.model_dump() for block in first.content]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "4"}]},
            ]
            last = await anthropic.messages.create(messages=history, **ask)
            assert last.stop_reason == "end_turn"
            return last.content[0].text

    said, session = talk(run(), client)
    assert said == "4"
    assert session.drifts == 0
    assert len(session.samples()) == 1


def test_malformed_arguments_reach_the_client(run: Any, engine: Any) -> None:
    engine.answer = lambda prompt, number: BAD_CALL

    async def client(address: str, session: Session) -> Any:
        body = {"model": "m", "messages": [{"role": "user", "content": "q"}], "max_tokens": 100}
        async with aiohttp.ClientSession() as http:
            async with http.post(f"{address}/v1/chat/completions", json=body) as reply:
                chat = await reply.json()
            async with http.post(f"{address}/v1/messages", json=body) as reply:
                return chat, await reply.json()

    (chat, message), _ = talk(run(), client)
    assert chat["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == '{"a":'
    assert message["content"][0]["input"] == {"_malformed": '{"a":'}


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/v1/chat/completions", b"{", 400, "not JSON"),
        ("/v1/chat/completions", b"[]", 400, "no object"),
        ("/v1/chat/completions", b"{}", 400, "messages must be a list"),
        ("/v1/chat/completions", b"[" * 10**5, 400, "not JSON"),
        ("/v1/chat/completions", b'{"messages": [3]}', 400, "messages must be a list of objects"),
        ("/v1/chat/completions", _chat(tool_calls=3), 400, "tool_calls must be a list"),
        ("/v1/chat/completions", _chat(tool_calls=["add"]), 400, "tool_calls must be a list"),
        ("/v1/chat/completions", _chat(content={"type": "text"}), 400, "message content must be a text or a list"),
        ("/v1/chat/completions", _chat(content="\ud800"), 400, "half a character"),
        ("/v1/chat/completions", _chat() | {"tools": "add"}, 400, "tools must be a list"),
        ("/v1/chat/completions", _chat() | {"tools": [{"type": "function"}]}, 400, "a tool without a function"),
        ("/v1/chat/completions", _chat() | {"max_tokens": "many"}, 400, "max_tokens is 'many'"),
        ("/v1/chat/completions", _chat() | {"max_completion_tokens": 0, "max_tokens": 5}, 400, "max_tokens is 0"),
        ("/v1/messages", _chat() | {"max_tokens": 2.5}, 400, "max_tokens is 2.5"),
        ("/v1/messages", _chat() | {"tools": [3]}, 400, "tools must be a list"),
        ("/v1/messages", _chat() | {"system": 3}, 400, "message content must be"),
        ("/v1/messages", _chat(content=["q"]), 400, "message content must be a text or a list of blocks"),
        ("/v1/messages", _chat(content=7), 400, "message content must be a text or a list of blocks"),
        ("/v1/messages", b'{"messages": [{"role": "tool"}]}', 400, "no role of user, assistant"),
        ("x/v1/messages", b"{}", 400, "no such session"),
    ],
)
def test_bad_requests_are_answered_in_each_clients_form(run: Any, path: str, body: Any, status: int, said: str) -> None:
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def client(address: str, session: Session) -> Any:
        async with aiohttp.ClientSession() as http, http.post(address + path, data=sent) as reply:
            return reply.status, await reply.json()

    (found, answer), session = talk(run(), client)
    assert found == status
    assert said in answer["error"]["message"]
    assert "\n" not in answer["error"]["message"]
    assert (session.samples(), session.truncated) == ([], False)


def test_messages_that_the_template_refuses_are_a_bad_request(run: Any) -> None:
    args = run()
    args.apply_chat_template_kwargs = {"chat_template": "{{ raise_exception('roles must alternate') }}"}

    async def client(address: str, session: Session) -> Any:
        async with aiohttp.ClientSession() as http, http.post(address + "/v1/messages", json=_chat()) as reply:
            return reply.status, (await reply.json())["error"]["message"]

    (status, said), _ = talk(args, client)
    assert status == 400
    assert "roles must alternate" in said


def test_the_context_of_an_evaluation_bounds_its_turns(run: Any, engine: Any) -> None:
    """Turns of one session share the context that the request's dataset allows."""
    args = run("--eval-max-context-len", "60", "--eval-prompt-data", "dev", "/nowhere", "--assume-files", "--dry-run")
    params = eval_sampling(eval_datasets(args)[0], args)
    assert (params.max_context_len, train_sampling(args).max_context_len) == (60, 512)
    session = Session(args, Sample(index=0, prompt="q"), params, current(), hermes)
    engine.answer = lambda prompt, number: "word"
    history = [{"role": "user", "content": "q"}]
    first = asyncio.run(session.complete(history))
    assert engine.requests[0][1].max_tokens == 60 - first.prompt_tokens
    with pytest.raises(UsageError, match="leave no room") as error:
        asyncio.run(session.complete([*history, first.message, {"role": "user", "content": "more" * 5}]))
    assert "--eval-max-context-len" in error.value.render()


def an_agent(monkeypatch: pytest.MonkeyPatch, agent: Any) -> str:
    module = ModuleType("agents_under_test")
    module.agent = agent  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "agents_under_test", module)
    return "agents_under_test.agent"


def run_agent(args: Namespace) -> list[Sample]:
    return asyncio.run(generate(args, Sample(index=5, prompt="q=", label="cba"), train_sampling(args)))


def test_the_worked_example_earns_what_it_says(run: Any, engine: Any) -> None:
    args = run("--agent-path", "examples.agents.lookup.find_word")
    args.agent_tool_parser = "examples.agents.lookup.letter_tool"
    assert load_hook("agent_path", args.agent_path)
    for answers, reward, turns in ((["gxx", "cba"], 1.0, 2), (["gxx", "cxa"], 0.2 + 0.8 * 2 / 3, 2), (["xx"], 0.0, 1)):
        texts = iter(answers)
        engine.answer = lambda prompt, number, texts=texts: next(texts)
        (sample,) = run_agent(args)
        assert sample.reward == pytest.approx(reward)
        assert sample.metadata["agent_turns"] == turns
        assert sample.status is Status.COMPLETED
    assert "rabc=" in engine.requests[1][0]


def test_many_agents_that_begin_at_once_share_one_server(run: Any, engine: Any) -> None:
    args = run("--agent-path", "examples.agents.lookup.find_word")
    args.agent_tool_parser = "examples.agents.lookup.letter_tool"
    engine.answer = lambda prompt, number: "g"

    async def all_of_them() -> list[list[Sample]]:
        runs = [generate(args, Sample(index=i, prompt="q=", label="cba"), train_sampling(args)) for i in range(64)]
        return await asyncio.gather(*runs)

    found = [sample for group in asyncio.run(all_of_them()) for sample in group]
    assert Counter(sample.metadata.get("failure") for sample in found) == {None: 64}


def test_an_agent_that_fails_or_hangs_marks_its_samples(run: Any, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.answer = lambda prompt, number: "ok"

    async def ask(address: str) -> None:
        body = {"messages": [{"role": "user", "content": "q"}]}
        async with aiohttp.ClientSession() as http, http.post(f"{address}/v1/chat/completions", json=body) as reply:
            await reply.read()

    async def breaks(address: str, sample: Sample, sandbox: Sandbox) -> float:
        await ask(address)
        raise RuntimeError("a bug of the agent's")

    async def hangs(address: str, sample: Sample, sandbox: Sandbox) -> float:
        await ask(address)
        await asyncio.Event().wait()
        return 1.0

    async def silent(address: str, sample: Sample, sandbox: Sandbox) -> float:
        return 1.0

    for agent, reason in ((breaks, "agent_RuntimeError"), (hangs, "agent_timeout"), (silent, "agent_said_nothing")):
        args = run("--agent-path", an_agent(monkeypatch, agent), "--agent-timeout", "0.5")
        (sample,) = run_agent(args)
        assert (sample.status, sample.metadata["failure"]) == (Status.FAILED, reason)
        assert sample.remove_sample


def test_an_agent_of_a_step_that_closes_begins_anew_another_time(
    run: Any, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def agent(address: str, sample: Sample, sandbox: Sandbox) -> float:
        body = {"messages": [{"role": "user", "content": "q"}]}
        async with aiohttp.ClientSession() as http, http.post(f"{address}/v1/chat/completions", json=body) as reply:
            assert reply.status == 502
        return 1.0

    args = run("--agent-path", an_agent(monkeypatch, agent))
    current().aborting = True
    (sample,) = run_agent(args)
    assert (sample.status, sample.response_length, sample.reward) == (Status.ABORTED, 0, None)


def test_a_runs_sandboxes_go_with_it_however_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed rollout manager closes nothing; hundreds of folders were left in the system's temporary folder."""
    monkeypatch.setenv("VIME_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv(processes.RUN_VARIABLE, "some-run")
    source = "import os; from vime.agents.sandbox import LocalSandbox; LocalSandbox(); os.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-c", source], check=False)
    assert done.returncode == -9
    record = processes.RunRecord("some-run", 1, 0, str(tmp_path), str(tmp_path / "some-run"), "")
    assert len(list(tmp_path.rglob("vime-sandbox-*"))) == 1
    processes.forget(record)
    assert not list(tmp_path.rglob("vime-sandbox-*"))


def test_the_sandbox_bounds_time_output_and_paths() -> None:
    async def scenario() -> None:
        sandbox = LocalSandbox(cpu_seconds=5)
        assert isinstance(sandbox, Sandbox)
        try:
            await sandbox.write_file("in/a.txt", "hello")
            done = await sandbox.exec("cat in/a.txt; echo oops >&2; exit 3")
            assert (done.code, done.stdout, done.stderr) == (3, "hello", "oops\n")
            late = await sandbox.exec("echo begun; sleep 60 & sleep 60", timeout=1.0)
            assert late.timed_out
            assert late.stdout == "begun\n"
            long = await sandbox.exec("yes | head -c 1000000; echo end", timeout=30.0)
            assert len(long.stdout) < 70_000
            assert long.stdout.endswith("end\n")
            assert (await sandbox.exec("head -c 5 in/a.txt > out")).code == 0
            assert await sandbox.read_file("out") == "hello"
            with pytest.raises(UsageError, match="outside the sandbox"):
                await sandbox.read_file("../../etc/passwd")
            with pytest.raises(UsageError, match="outside the sandbox"):
                await sandbox.write_file("/etc/x", "")
            with pytest.raises(FileNotFoundError):
                await sandbox.read_file("none")
            greedy = await sandbox.exec("python3 -c 'x = bytearray(2 << 30)'", timeout=30.0)
            assert greedy.code not in (0, None)
        finally:
            await sandbox.close()
        assert not sandbox.folder.exists()

    asyncio.run(scenario())
