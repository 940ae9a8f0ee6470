"""Claims and their proof, foreign text in our Markdown, and the part of a description that is ours."""

from __future__ import annotations

import datetime
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from synctool.errors import ConfigError, Refused
from synctool.evidence.record import Record
from synctool.evidence.standing import Target, assess
from synctool.policy.loading import parse_policy
from synctool.report.body import LIMIT, block, merge, render, split
from synctool.report.claims import Claim, Section, prove
from synctool.report.facts import Facts
from synctool.report.markdown import code, link, plain

POLICY = 'schema = 1\n[upstream]\nname = "lantern"\n[downstream]\nname = "beacon"\n'
TARGET = Target("a" * 40, "b" * 40)
HOSTILE = "@team <img src=x onerror=1> <!-- vime-sync:end --> | `a` **b** [c](http://evil) #12 ](x)"


def facts(*records: Record) -> Facts:
    return Facts(TARGET, parse_policy(POLICY), None, None, assess(records, (), TARGET, lambda tree: ()), {}, {})


def record(**more: object) -> Record:
    values = {
        "head": TARGET.head, "tree": TARGET.tree, "name": "unit", "kind": "test", "outcome": "passed", "source": "run", "by": "A <a@b>",
        "when": datetime.datetime(2026, 11, 28, tzinfo=datetime.UTC), **more,
    }  # fmt: skip
    return Record.model_validate(values)


def test_a_claim_needs_a_source():
    with pytest.raises(Refused, match="without a source"):
        Claim("all is well", ())


@pytest.mark.parametrize(
    "text", ["293 tests", "292 tests, 1 more", "head `abcdef123`", "2,920 tests", "version 0.32.1", "run #1384"]
)
def test_what_no_record_says_is_refused(text):
    known = {"r": {"tests": 292, "head": "abcdef0123", "version": "0.32.0", "run": "#1383"}}
    with pytest.raises(Refused, match="not recorded"):
        prove([Section("Validation", (Claim(text, ("r",)),))], known)
    with pytest.raises(Refused, match="nowhere"):
        prove([Section("Validation", (Claim("fine", ("nowhere",)),))], known)
    prove(
        [
            Section(
                "Validation", (Claim("292 tests, head `abcdef0`, version 0.32.0, run [#1383](https://ci/99)", ("r",)),)
            )
        ],
        known,
    )


def test_a_claim_of_another_record_does_not_count():
    known = {"one": {"tests": 292}, "two": {"tests": 175}}
    with pytest.raises(Refused):
        prove([Section("x", (Claim("292 tests", ("two",)),))], known)


@given(st.text(max_size=60))
def test_foreign_text_stays_text(text):
    html = MarkdownIt("gfm-like", {"linkify": False}).render(f"- {plain(text)}")
    tags = set(re.findall(r"<(\w+)", html.replace("<!-- -->", "")))
    assert tags <= {"ul", "li", "p", "br", "hr", "h1", "h2", "pre", "code", "ol", "blockquote"}, html
    assert "\n" not in plain(text)


def test_hostile_text():
    shown = plain(HOSTILE)
    assert "<img" not in shown
    assert "vime-sync:end -->" not in shown
    assert not re.search(r"[@#]\w", shown)
    assert link("run", "javascript:alert(1)") == "run"
    assert link("run", "https://ci/1") == "[run](https://ci/1)"
    assert code("a`b`` c") == "```a`b`` c```"
    body = render(
        facts(record(note=HOSTILE, name="x", details={"a": HOSTILE}, source="attested", signed_off_by=HOSTILE))
    )
    parts = split(merge("", body, "sync/x"))
    assert parts is not None
    assert parts.ours.strip() == body.strip()


def test_a_secret_in_a_record_does_not_come_out():
    token = "ghp_thisIsTheSecretOfTheTest0123456789"
    assert token not in render(facts(record(note=f"used {token}")))


def test_sources_are_dated_to_the_second():
    when = datetime.datetime(2026, 11, 28, 13, 5, 7, 123456, datetime.UTC)
    made = record(when=when)
    assert f"`{made.id}`: unit, 2026-11-28T13:05:07Z, by" in render(facts(made))


def test_nothing_recorded_claims_nothing():
    body = render(facts())
    lines = [line for line in body.split("<details>")[0].splitlines() if line.startswith("- ")]
    assert lines == [f"- Head `{TARGET.head}`, tree `{TARGET.tree}`. <sup>git</sup>"]


@pytest.mark.parametrize(
    "text", ["{{ nothing }}", "{% if %}", "{{ facts.__class__.__mro__ }}", "{{ sections.append(1) }}"]
)
def test_templates_are_sandboxed_and_strict(tmp_path, text):
    path = tmp_path / "t.j2"
    path.write_text("x\n" + text)
    with pytest.raises(ConfigError, match="template is wrong") as caught:
        render(facts(), path)
    assert str(path) in caught.value.where


def test_a_template_of_ones_own(tmp_path):
    (tmp_path / "t.j2").write_text(
        "{% for s in sections %}{{ s.title }}: {{ s.claims | length }}\n{% endfor %}{{ facts.upstream }}"
    )
    assert render(facts(record()), tmp_path / "t.j2") == "Range: 1\nValidation on this head: 1\nlantern\n"


PROSE = st.text(st.characters(exclude_characters="<", exclude_categories=["Cs"]), max_size=80)


@given(
    PROSE, PROSE, st.text(st.characters(exclude_characters="<\r\0", exclude_categories=["Cs"]), min_size=1, max_size=80)
)
def test_people_keep_every_byte(before, after, text):
    first = merge(before, "old", "k")
    parts = split(first)
    assert parts is not None
    assert parts.before.startswith(before)
    second = merge(before + block("old", "k") + after, text, "k")
    assert second == before + block(text, "k") + after
    assert merge(second, text, "k") == second


def test_an_edit_inside_is_seen_and_line_ends_are_none():
    whole = merge("hi\n", "one\ntwo", "k")
    assert split(whole).edited is False
    assert split(whole.replace("\n", "\r\n")).edited is False
    assert split(whole.replace("two", "2")).edited is True


@pytest.mark.parametrize(
    "damage",
    [lambda t: t.replace("<!-- vime-sync:end -->", ""), lambda t: t + t, lambda t: t + "<!-- vime-sync:end -->"],
)
def test_damaged_markers(damage):
    with pytest.raises(Refused, match="markers"):
        split(damage(block("x", "k")))


def test_too_long():
    with pytest.raises(Refused, match="over the forge's"):
        merge("x" * LIMIT, "y", "k")
    with pytest.raises(Refused, match="characters"):
        render(facts(*(record(name=f"n{n}", note="z" * 900) for n in range(80))))
