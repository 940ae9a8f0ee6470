"""Rewards by rule, against cases with known answers; failures that mark a sample and nothing else."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vime.errors import UsageError, VimeError
from vime.rollout.rewards import expression, remote, rules
from vime.rollout.rewards.boxed import last_boxed
from vime.rollout.rewards.math_equal import is_equal
from vime.rollout.rewards.score import Judge, async_rm, score_group
from vime.sample import Sample, Status

Make = Callable[..., Namespace]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{1} or rather \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{a_{b_{c}}}", "a_{b_{c}}"),
        (r"\fbox{7}", "7"),
        (r"\boxed 42 $", "42"),
        (r"\boxed{1} then \boxed{unclosed", "1"),
        ("no box", None),
        (r"\boxed{}", ""),
    ],
)
def test_the_last_closed_box_counts(text: str, answer: str | None) -> None:
    assert last_boxed(text) == answer


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("0.5", r"\frac{1}{2}"),
        (r"\frac12", "1/2"),
        (r"\dfrac{3}{4}", r"\tfrac34"),
        (r"2\frac{1}{2}", "2.5"),
        (r"\sqrt{8}", r"2\sqrt2"),
        (r"\sqrt[3]{27}", "3"),
        ("1,000,000", "10^6"),
        (r"50\%", "50"),
        (r"90^\circ", "90"),
        (r"5\text{ cm}", "5"),
        ("3 dollars", r"\$3"),
        ("x = 5", "5"),
        (r"x^2+2x+1", "(x+1)^2"),
        ("2xy", "2yx"),
        (r"\pi/2", r"\frac{\pi}{2}"),
        (r"(1, \frac{1}{2})", "(1,0.5)"),
        ("1, 2", "2, 1"),
        (r"\left[0, 1\right)", "[0,1)"),
        (r"\text{Monday}", "monday"),
        ("-3", "−3"),
        (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}"),
        (r"\sin^2", r"\sin^2"),
        ("5!", "120"),
        (r"2 \times 10^{3}", "2000"),
        (r"\log(e)", r"\ln(e)"),
    ],
)
def test_equal_answers(one: str, other: str) -> None:
    assert is_equal(one, other)
    assert is_equal(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("0.5", "0.6"),
        ("(1,2)", "(2,1)"),
        ("(0,1)", "[0,1]"),
        ("1,2", "1,2,3"),
        ("x+1", "x-1"),
        ("", "0"),
        ("Monday", "Tuesday"),
        ("1/0", "0"),
        ("10^(10^10)", "5"),
        ("9" * 300, "9" * 301),
        ("x", "y"),
        ("__import__('os').system('true')", "0"),
    ],
)
def test_unequal_answers(one: str, other: str) -> None:
    assert not is_equal(one, other)
    assert not is_equal(other, one)


@given(numerator=st.integers(-500, 500), denominator=st.integers(1, 500), scale=st.integers(1, 20))
@settings(max_examples=60, deadline=None)
def test_a_fraction_equals_itself_however_it_is_written(numerator: int, denominator: int, scale: int) -> None:
    value = Fraction(numerator, denominator)
    latex = rf"\frac{{{numerator * scale}}}{{{denominator * scale}}}"
    assert is_equal(latex, f"{value.numerator}/{value.denominator}")
    assert not is_equal(latex, f"{value.numerator + 1}/{value.denominator}")


@given(st.text(alphabet="0123456789+-*/^()!.xyz \\{}frac,=sqrtpi", max_size=40))
@settings(max_examples=300, deadline=None)
def test_no_answer_can_raise_or_take_long(text: str) -> None:
    assert is_equal(text, "0") in (True, False)
    assert rules.math(rf"\boxed{{{text}}}", "1", {}) in (0.0, 1.0)


def test_an_answer_is_never_evaluated_as_python(tmp_path: Path) -> None:
    target = tmp_path / "touched"
    assert not is_equal(f"open('{target}','w')", "1")
    with pytest.raises(expression.NotAnExpression):
        expression.parse(f"open('{target}','w')")
    assert not target.exists()


@pytest.mark.parametrize(
    ("rule", "response", "label", "metadata", "reward"),
    [
        (rules.math, r"it is \boxed{\frac{1}{2}}", "0.5", {}, 1.0),
        (rules.math, "it is 0.5", "0.5", {}, 0.0),
        (rules.math, r"\boxed{3}", ["2", "3"], {}, 1.0),
        (rules.math, r"\boxed{3}", r"thus \boxed{3}", {}, 1.0),
        (rules.dapo, "Answer: 1\nAnswer: 34", "34", {}, {"score": 1.0, "acc": True, "pred": "34"}),
        (rules.dapo, r"Answer: $\boxed{34}$", "34", {}, {"score": 1.0, "acc": True, "pred": "34"}),
        (rules.dapo, "Answer: 34" + " and so on" * 40, "34", {}, {"score": -1.0, "acc": False, "pred": "[none]"}),
        (rules.deepscaler, r"<think>\boxed{1}</think> \boxed{2}", "2", {}, 1.0),
        (rules.deepscaler, r"<think>\boxed{2}", "2", {}, 0.0),
        (rules.deepscaler, r"###Response: \boxed{2}", "2", {}, 1.0),
        (rules.f1, "the cat sat", "a cat sat", {}, 1.0),
        (rules.f1, "cat", "cat sat", {}, pytest.approx(2 / 3)),
        (rules.f1, "dog", ["cat", "Dog!"], {}, 1.0),
        (rules.f1, "dog", "cat", {}, 0.0),
        (rules.gpqa, "The answer is (C).", "C", {}, 1.0),
        (rules.gpqa, r"A or B? \boxed{B}", "B", {}, 1.0),
        (rules.gpqa, "<think>answer is A</think>Answer: D", "D", {}, 1.0),
        (rules.gpqa, "Answer: B", "two", {"choices": ["one", "two"]}, 1.0),
        (rules.gpqa, "I cannot say", "A", {}, 0.0),
        (rules.reverse_word, "edcba", "edcba", {}, 1.0),
        (rules.reverse_word, "edcbx", "edcba", {}, pytest.approx(0.4)),
        (rules.reverse_word, "edcbaa", "edcba", {}, pytest.approx(0.5)),
        (rules.reverse_word, "", "edcba", {}, 0.0),
    ],
)
def test_rules(rule: rules.Any, response: str, label: Any, metadata: dict[str, Any], reward: Any) -> None:
    assert rule(response, label, metadata) == reward


def finished(response: str = "", label: Any = None, **fields: Any) -> Sample:
    return Sample(index=0, group_index=0, response=response, label=label, status=Status.COMPLETED, **fields)


def test_the_samples_own_reward_comes_first_then_the_type_of_its_row(make_args: Make) -> None:
    args = make_args("--rm-type", "math")
    own = finished(r"\boxed{1}", "1", metadata={"rm_type": "f1"})
    assert asyncio.run(async_rm(args, own)) != 1.0
    assert asyncio.run(async_rm(args, finished(r"\boxed{1}", "1"))) == 1.0
    assert asyncio.run(async_rm(args, finished(r"x \boxed{cat}", "cat", metadata={"rm_type": "boxed_f1"}))) == 1.0
    with pytest.raises(UsageError, match="unknown reward type 'maths'"):
        asyncio.run(async_rm(args, finished(metadata={"rm_type": "maths"})))


@pytest.fixture
def hooks() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("user_hooks", Path(__file__).with_name("user_hooks.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["user_hooks"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["user_hooks"]


def test_a_reward_that_takes_too_long_fails_its_sample_only(make_args: Make, hooks: Any) -> None:
    args = make_args("--custom-rm-path", "user_hooks.reward_never", "--rm-timeout", "0.05")
    group = [finished(label="1"), finished(label="2"), finished(label="3")]
    asyncio.run(score_group(args, group, Judge.of_run(args)))
    assert [sample.status for sample in group] == [Status.FAILED, Status.COMPLETED, Status.COMPLETED]
    assert group[0].metadata["failure"] == "reward_timeout"
    assert group[0].remove_sample
    assert group[0].reward == 3.0  # the mean of the others, so that its advantage is 0


def test_a_wrong_reward_key_is_configuration_and_surfaces(make_args: Make, hooks: Any) -> None:
    args = make_args("--custom-rm-path", "user_hooks.reward_dict", "--reward-key", "scores")
    with pytest.raises(UsageError, match="no key 'scores'; it has score, pred"):
        asyncio.run(score_group(args, [finished(label="1")], Judge.of_run(args)))


class RewardServer(BaseHTTPRequestHandler):
    """Answers with the statuses in `script`, then 200."""

    script: ClassVar[list[int]] = []
    asked: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).asked.append(body)
        status = self.script.pop(0) if self.script else 200
        self.send_response(status)
        self.end_headers()
        self.wfile.write(b"0.25" if status == 200 else b"busy")

    def log_message(self, *args: Any) -> None: ...


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(remote, "_FIRST_WAIT", 0.0)
    RewardServer.script, RewardServer.asked = [], []
    server = HTTPServer(("127.0.0.1", 0), RewardServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_busy_reward_server_is_asked_again(make_args: Make, judge: str) -> None:
    args = make_args("--rm-type", "remote_rm", "--rm-url", judge)
    RewardServer.script = [503, 429]
    assert asyncio.run(async_rm(args, finished("r", "l", prompt="p"))) == 0.25
    assert RewardServer.asked == [{"prompt": "p", "response": "r", "label": "l"}] * 3


def test_a_reward_server_that_refuses_or_never_recovers_is_named(make_args: Make, judge: str) -> None:
    args = make_args("--rm-type", "remote_rm", "--rm-url", judge)
    RewardServer.script = [400]
    with pytest.raises(VimeError, match="status 400: busy"):
        asyncio.run(async_rm(args, finished("r")))
    assert len(RewardServer.asked) == 1
    RewardServer.script = [500] * 20
    with pytest.raises(VimeError, match="failed 10 times, last with status 500"):
        asyncio.run(async_rm(args, finished("r")))
