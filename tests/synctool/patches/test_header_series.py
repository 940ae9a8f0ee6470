"""Headers, series and lint: every rule has a sample that passes and one that does not, and says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synctool.errors import ConfigError, UsageError
from synctool.patches.digest import stack_digest
from synctool.patches.header import keep_context, lint_header, parse_header, render_header, set_field
from synctool.patches.series import edit_series, parse_series
from synctool.patches.stack import find_stack, load_stack

from .conftest import HEADER, House

GOOD = HEADER.format(subject="does a thing")


def test_fields_continuations_and_loose_text() -> None:
    header = parse_header(
        b"From: someone: else\nDescription: one\n two\n .\n four\nOrigin: x, http://a:1/b\nnot a field here\n---\n"
    )
    assert header.get("description") == "one\ntwo\n\nfour"
    assert header.get("Origin") == "x, http://a:1/b"
    assert header.get("From") == "someone: else"
    assert header.loose == ((7, "not a field here"),)
    assert header.line("Origin") == 6


NAMES = st.from_regex(r"[A-Z][a-z]{1,8}(-[A-Z][a-z]{1,5})?", fullmatch=True)
WORDS = st.text(st.characters(codec="utf-8", categories=["L", "N", "P"]), min_size=1, max_size=12).filter(
    lambda text: text != "."
)
VALUES = st.lists(WORDS, min_size=1, max_size=3).map("\n".join)


@given(st.lists(st.tuples(NAMES, VALUES), min_size=1, max_size=5, unique_by=lambda pair: pair[0].lower()))
def test_rendered_fields_come_back(fields: list[tuple[str, str]]) -> None:
    assert [(f.name, f.value) for f in parse_header(render_header(fields)).fields] == fields


def test_setting_a_field_leaves_every_other_byte() -> None:
    raw = b"Description: x\n long\n  indented  \nOdd text\xff\nOrigin: y\n---\n"
    assert set_field(raw, "Origin", "z") == raw.replace(b"Origin: y", b"Origin: z")
    assert set_field(raw, "Removal-Condition", "never") == raw.replace(
        b"Origin: y\n", b"Origin: y\nRemoval-Condition: never\n"
    )
    assert set_field(raw, "description", None) == b"Odd text\xff\nOrigin: y\n---\n"
    assert set_field(b"", "Origin", "z") == b"Origin: z\n---\n"


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("Description: does a thing\n", "", "description"),
        ("Forwarded: https://example.org/pull/1\n", "", "origin"),
        ("Upstream-Status: Submitted [https://example.org/pull/1]\n", "", "upstream-status"),
        ("Submitted [https://example.org/pull/1]", "Submitted", "upstream-status"),
        ("Submitted [https://example.org/pull/1]", "Denied [x]", "upstream-status"),
        ("Submitted [https://example.org/pull/1]", "Inappropriate", "upstream-status"),
        ("Removal-Condition: the pin contains pull 1\n", "", "removal"),
        ("Regression-Test: tests/test_it.py::test_it\n", "", "regression-test"),
        ("tests/test_it.py::test_it", "somewhere", "regression-test"),
        ("Forwarded:", "Upstream-Status: Pending\nForwarded:", "field-twice"),
        ("Forwarded:", "Context-Waiver: yes\nForwarded:", "waiver"),
    ],
)
def test_each_rule_finds_its_fault_and_says_the_cure(old: str, new: str, rule: str) -> None:
    assert lint_header(parse_header(GOOD.encode()), "x.patch") == []
    found = lint_header(parse_header(GOOD.replace(old, new).encode()), "x.patch")
    assert [f.rule for f in found] == [rule]
    assert found[0].fix
    assert found[0].where.startswith("x.patch:")


def test_waiver_needs_number_and_reason() -> None:
    assert keep_context(parse_header(b"Context-Waiver: 2; generated lines\n"), "x") == 2
    assert keep_context(parse_header(b"Description: x\n"), "x") is None
    with pytest.raises(ConfigError, match="number and a reason"):
        keep_context(parse_header(b"Context-Waiver: 2\n"), "x")


def test_series_grammar() -> None:
    text = "# top\n\na.patch\nb.patch -p1 # why\n  c.diff\n"
    assert [(e.name, e.line) for e in parse_series(text, "series")] == [("a.patch", 3), ("b.patch", 4), ("c.diff", 5)]
    for bad, says in (
        ("a.patch\na.patch\n", "twice"),
        ("../a.patch\n", "not a patch name"),
        ("a.patch -p0\n", "not supported"),
        ("sub/a.patch\n", "name"),
        ("-R.patch", "name"),
    ):
        with pytest.raises(ConfigError, match=says):
            parse_series(bad, "series")
    assert edit_series(text, add="d.patch") == text + "d.patch\n"
    assert edit_series(text, remove="b.patch") == "# top\n\na.patch\n  c.diff\n"
    assert edit_series(text, add="d.patch", after="a.patch").splitlines()[3] == "d.patch"
    assert edit_series("a.patch", remove="a.patch") == ""


def test_missing_unlisted_and_linked_patches(house: House) -> None:
    house.add("a.patch", {"engine/last.py": b"X = 9\n"})
    (house.stack / "stray.patch").write_text("x")
    with pytest.raises(ConfigError, match=r"stray\.patch not listed"):
        load_stack(house.stack)
    (house.stack / "stray.patch").unlink()
    (house.stack / "a.patch").rename(house.root / "a.patch")
    with pytest.raises(ConfigError, match="listed but missing"):
        load_stack(house.stack)
    (house.stack / "a.patch").symlink_to(house.root / "a.patch")
    with pytest.raises(ConfigError, match="listed but missing"):
        load_stack(house.stack)


def test_digest_binds_pin_order_and_every_byte(house: House) -> None:
    house.add("a.patch", {"engine/last.py": b"X = 9\n"})
    stack = load_stack(house.stack)
    patches = [(p.name, p.sha256) for p in stack.patches]
    known = stack_digest("engine", "1.0", stack.pin.archive.sha256, patches)
    assert stack.digest == known
    others = [
        stack_digest("engine", "1.1", stack.pin.archive.sha256, patches),
        stack_digest("engine", "1.0", "0" * 64, patches),
        stack_digest("engine", "1.0", stack.pin.archive.sha256, [*patches, ("b.patch", "0" * 64)]),
        stack_digest("engine", "1.0", stack.pin.archive.sha256, [(patches[0][0], "0" * 64)]),
        stack_digest("engine", "1.0", stack.pin.archive.sha256, []),
    ]
    assert len({known, *others}) == 6
    # A fixed value: the digest is an interface, and evidence of other days must still be comparable.
    assert (
        stack_digest("p", "1", "0" * 64, [("a", "1" * 64)])
        == "57a0a0ccca0923510650fadc05d0b4fe504cabe8c9970a00a78edc75fb6abb6c"
    )


def test_finding_the_stack(tmp_path: Path, house: House) -> None:
    assert find_stack(house.root) == house.stack
    assert find_stack(house.stack) == house.stack
    with pytest.raises(UsageError, match="no patch stack"):
        find_stack(tmp_path / "cache")
    (house.stack.parent / "2.0").mkdir()
    (house.stack.parent / "2.0" / "pin.toml").write_text("")
    with pytest.raises(UsageError, match="more than one"):
        find_stack(house.root)
    with pytest.raises(UsageError, match="not a stack"):
        find_stack(house.root, house.root)
