"""Conversations with the policy: tokens are those that were sampled, tools are masked, and a changed history forks."""

from __future__ import annotations

import asyncio
import math
from argparse import Namespace
from typing import Any

import pytest

from vime.agents.session import Session, first_messages
from vime.agents.tools import hermes
from vime.errors import UsageError
from vime.rollout.context import current
from vime.rollout.sampling import train_sampling
from vime.sample import Sample, Status

CALL = '<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>'


def new(args: Namespace) -> Session:
    sample = Sample(index=3, group_index=1, prompt="2+2?", label="4")
    return Session(args, sample, train_sampling(args), current(), hermes)


def say(session: Session, *messages: dict[str, Any]) -> Any:
    return asyncio.run(session.complete(list(messages)))


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def tool(text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text}


def answered(engine: Any, *texts: str) -> None:
    waiting = iter(texts)
    engine.answer = lambda prompt, number: next(waiting)


def decoded(sample: Sample, tokenizer: Any, mask: int) -> str:
    response = sample.tokens[sample.prompt_length :]
    return str(tokenizer.decode([t for t, m in zip(response, sample.loss_mask or [], strict=True) if m == mask]))


def test_a_tool_loop_is_one_sample_with_the_tools_words_masked(run: Any, engine: Any, tokenizer: Any) -> None:
    args = run()
    answered(engine, CALL, "it is 4")
    session = new(args)
    first = say(session, user("2+2?"))
    assert first.reason == "tool_calls"
    second = say(session, user("2+2?"), first.message, tool("4"))
    assert (second.reason, second.message["content"]) == ("stop", "it is 4")
    (sample,) = session.samples()
    assert (
        tokenizer.decode(sample.tokens[: sample.prompt_length])
        == "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert decoded(sample, tokenizer, 1) == CALL + "<eos>" + "it is 4<eos>"
    assert decoded(sample, tokenizer, 0) == "\n<|im_start|>tool\n4<|im_end|>\n<|im_start|>assistant\n"
    assert sample.rollout_log_probs is not None
    assert [lp == 0.0 for lp in sample.rollout_log_probs] == [m == 0 for m in sample.loss_mask or []]
    assert {lp for lp in sample.rollout_log_probs if lp} == {-math.log(2)}
    assert sample.status is Status.COMPLETED
    assert (sample.metadata["agent_turns"], sample.metadata["agent_drifts"]) == (2, 0)
    # What was sent the second time is what was recorded, token by token.
    assert engine.requests[1][0] == tokenizer.decode(sample.tokens[: -len(tokenizer("it is 4")["input_ids"]) - 1])


def test_blanks_and_ids_that_a_client_changes_do_not_fork(run: Any, engine: Any) -> None:
    args = run()
    answered(engine, CALL, " done ", "bye")
    session = new(args)
    first = say(session, user("q")).message
    first["tool_calls"][0]["id"] = "another"
    first["tool_calls"][0]["function"]["arguments"] = '{ "a" : 2 }'
    second = say(session, user("q"), first, tool("4")).message
    say(
        session,
        user("q"),
        first,
        tool("4"),
        {"role": "assistant", "content": second["content"].strip()},
        user("thanks"),
    )
    assert len(session.samples()) == 1
    assert session.drifts == 0


def test_a_rewritten_answer_forks_and_what_both_share_is_trained_once(run: Any, engine: Any, tokenizer: Any) -> None:
    args = run()
    answered(engine, "first", "second", "third")
    session = new(args)
    one = say(session, user("q")).message
    two = say(session, user("q"), one, user("more")).message
    say(session, user("q"), one, user("more"), {"role": "assistant", "content": "tidied"}, user("again"))
    assert two["content"] == "second"
    plain, forked = session.samples()
    assert decoded(plain, tokenizer, 1) == "first<eos>second<eos>"
    assert decoded(forked, tokenizer, 1) == "third<eos>"
    assert "first<eos>" in decoded(forked, tokenizer, 0)
    assert "tidied" in decoded(forked, tokenizer, 0)
    assert session.drifts == 1


def test_a_history_that_begins_anew_is_a_branch_of_its_own(run: Any, engine: Any, tokenizer: Any) -> None:
    args = run()
    answered(engine, "one", "two")
    session = new(args)
    say(session, user("q"))
    say(session, user("a summary of q"))
    first, second = session.samples()
    assert [decoded(sample, tokenizer, 1) for sample in (first, second)] == ["one<eos>", "two<eos>"]
    assert session.drifts == 1


def test_two_answers_to_one_history_are_two_branches(run: Any, engine: Any, tokenizer: Any) -> None:
    """A client that asks the same twice, as for a vote."""
    args = run()
    answered(engine, "root", "left", "right")
    session = new(args)
    root = say(session, user("q")).message
    say(session, user("q"), root, user("go"))
    say(session, user("q"), root, user("go"))
    left, right = session.samples()
    assert decoded(left, tokenizer, 1) == "root<eos>left<eos>"
    assert decoded(right, tokenizer, 1) == "right<eos>"


def test_an_answer_that_was_cut_off_gets_the_templates_end_as_context(run: Any, engine: Any, tokenizer: Any) -> None:
    args = run("--rollout-max-response-len", "4")
    answered(engine, "abcdefgh", "ok")
    session = new(args)
    first = say(session, user("q"))
    assert first.reason == "length"
    say(session, user("q"), first.message, user("go on"))
    (sample,) = session.samples()
    assert decoded(sample, tokenizer, 1) == "abcdok<eos>"
    assert decoded(sample, tokenizer, 0).startswith("<|im_end|>\n<|im_start|>user\ngo on")


def test_turns_and_tokens_are_bounded(run: Any, engine: Any) -> None:
    engine.answer = lambda prompt, number: "ok"
    args = run("--agent-max-turns", "1")
    session = new(args)
    say(session, user("p01="))
    with pytest.raises(UsageError, match="has had its 1 turns"):
        say(session, user("p01="))
    args = run("--rollout-max-context-len", "64", "--rollout-max-response-len", "8", "--agent-max-turns", "8")
    session = new(args)
    with pytest.raises(UsageError, match="leave no room"):
        say(session, user("x" * 80))
    assert session.truncated


def test_versions_of_the_weights_follow_the_tokens(run: Any, engine: Any) -> None:
    args = run()
    answered(engine, "aa", "bbb")
    session = new(args)
    engine.version = "7"
    one = say(session, user("q")).message
    engine.version = "8"
    say(session, user("q"), one, user("r"))
    (sample,) = session.samples()
    spans = [(span.version, sample.tokens[sample.prompt_length + span.start]) for span in sample.version_spans]
    assert [version for version, _ in spans] == ["7", "8"]
    assert sample.weight_versions == ["7", "8"]


def test_the_first_messages_of_a_row() -> None:
    assert first_messages(Sample(prompt="hi")) == [{"role": "user", "content": "hi"}]
    given = [{"role": "system", "content": "s"}]
    assert first_messages(Sample(prompt="x", metadata={"messages": given})) == given
