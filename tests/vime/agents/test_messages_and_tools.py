"""Both clients' messages in one form, and tool calls as models write them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime.agents.messages import (
    for_template,
    from_anthropic,
    from_openai,
    key,
    limit_of,
    text_of,
    tools_from_anthropic,
    tools_from_openai,
)
from vime.agents.tools import hermes, no_tools, tool_parser
from vime.errors import HookError, UsageError


def call(name: str, arguments: str, id: str = "c1") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_the_same_conversation_is_the_same_whoever_tells_it() -> None:
    openai = from_openai(
        [
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "2+2"}, {"type": "text", "text": "?"}]},
            {"role": "assistant", "content": None, "tool_calls": [call("add", '{"a": 2, "b": 2}')]},
            {"role": "tool", "tool_call_id": "c1", "content": "4"},
            {"role": "user", "content": "so?"},
        ]
    )
    anthropic = from_anthropic(
        [{"type": "text", "text": "be brief"}],
        [
            {"role": "user", "content": "2+2?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm"},
                    {"type": "tool_use", "id": "x9", "name": "add", "input": {"b": 2, "a": 2}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "x9", "content": [{"type": "text", "text": "4"}]},
                    {"type": "text", "text": "so?"},
                ],
            },
        ],
    )
    assert [key(one) for one in openai] == [key(one) for one in anthropic]
    assert [one["role"] for one in openai] == ["system", "user", "assistant", "tool", "user"]
    assert for_template(openai[2])["tool_calls"][0]["function"]["arguments"] == {"a": 2, "b": 2}


def test_malformed_arguments_stay_as_the_model_wrote_them() -> None:
    (message,) = from_openai([{"role": "assistant", "content": "", "tool_calls": [call("f", "{oops")]}])
    assert for_template(message)["tool_calls"][0]["function"]["arguments"] == "{oops"
    assert key(message) != key(from_openai([{"role": "assistant", "tool_calls": [call("f", "{}")]}])[0])


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (None, "must be a list"),
        ([], "at least one"),
        ([{"role": "robot", "content": "x"}], "message 0 has no role"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "'image_url' is not supported"),
        ([{"role": "assistant", "tool_calls": [{"id": "1"}]}], "without a function name"),
        ([{"role": "user", "content": 3}], "content must be a text or a list"),
    ],
)
def test_what_cannot_be_read_is_said(sent: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        from_openai(sent)


def test_tools_of_anthropic_are_tools_of_openai() -> None:
    tools = tools_from_anthropic([{"name": "add", "description": "d", "input_schema": {"type": "object"}}])
    assert tools == [
        {"type": "function", "function": {"name": "add", "description": "d", "parameters": {"type": "object"}}}
    ]
    assert tools_from_anthropic(None) is None
    assert text_of(None) == ""


def test_hermes_calls() -> None:
    text = 'I add.<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n<tool_call>{"name": "now"}</tool_call>'
    content, calls = hermes(text)
    assert content == "I add."
    assert [(name, json.loads(arguments)) for name, arguments in calls] == [("add", {"a": 1}), ("now", {})]
    assert hermes("no call") == ("no call", [])
    assert no_tools(text) == (text, [])


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ('<tool_call>{"name": "f", "arguments": {"a": 1</tool_call>', "", [("f", '{"a": 1')]),
        ('<tool_call>{"name": "f", "arguments": "x"}', "", [("f", "x")]),
        ("<tool_call>nonsense</tool_call>", "<tool_call>nonsense</tool_call>", []),
    ],
)
def test_malformed_calls_are_kept(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert hermes(text) == (content, calls)


def test_a_parser_of_the_users_own() -> None:
    parser = tool_parser("examples.agents.lookup.letter_tool")
    assert parser("gxx") == ("", [("get", "{}")])
    assert parser("xg") == ("xg", [])
    with pytest.raises(HookError, match="--agent-tool-parser"):
        tool_parser("no.such.parser")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "text", "function", "name", "id", "input", "content"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)
_MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", 3])},
    optional={"content": _JSON, "tool_calls": _JSON, "tool_call_id": _JSON},
)


@given(_JSON | st.lists(_MESSAGE | _JSON, max_size=3), _JSON)
def test_whatever_a_client_sends_is_read_or_refused(sent: Any, other: Any) -> None:
    readers: list[Any] = [from_openai, lambda given: from_anthropic(other, given), tools_from_anthropic]
    for read in [*readers, tools_from_openai, limit_of]:
        try:
            found = read(sent)
        except UsageError:
            continue
        if read in readers[:2]:
            assert [for_template(one) and key(one) for one in found]
