"""A needle must be in every text that its regex matches, and a search by needle must find what a plain one finds."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synctool.translate.needle import find, find_all, needle, sees_beyond_line


@pytest.mark.parametrize(
    ("regex", "text"),
    [
        (r"\bTHUDM/slime\b", "THUDM/slime"), (r"a|bcd", ""), (r"(?:abc)?de", "de"), (r"ab+cd", "cd"), (r"x(abc)yz", "yz"), (r"(?i)abc", ""),
        (r"https?://lmsys\.org/", "://lmsys.org/"), (r"^# (?:ref|from)", "# "), (r"[a-z]", ""), (r"a(?!b)cde", "cde"),
    ],
)  # fmt: skip
def test_needles(regex: str, text: str) -> None:
    assert needle(re.compile(regex, re.MULTILINE)) == text


PARTS = ["a", "b", "ab", "a?", "b+", "(ab)", "(?:a|b)", "[ab]", "^", "(?=a)", "b{2}", "b{0,1}"]
PLACES = [
    "\\b",
    "\\B",
    "$",
    "^",
    "(?<=a)",
    "(?<!a)",
    "(?!b)",
    ".",
    "[^b\n]",
    "[^\n]*",
    "\\S",
    "\\w*?",
    "(?>a*)",
    "b++",
    "\\A",
    "\\s",
    "[^a]",
]


@given(st.lists(st.sampled_from(PARTS), max_size=6), st.text("ab\n", max_size=12))
def test_no_match_without_its_needle(parts: list[str], text: str) -> None:
    regex = re.compile("".join(parts), re.MULTILINE)
    for match in regex.finditer(text):
        assert needle(regex) in match.group()


@pytest.mark.parametrize(
    ("regex", "wide"),
    [
        (r"\bfoo\b[^\n]*$", False), (r"^# (?:ref|from)\S+(?! x)", False), (r"(?P<q>['\"]).*?(?P=q)", False), (r"(?>a|b)c++", False),
        (r"[\w.-]+", False), (r"[^\s)]*", False), (r"a\s", True), (r"[^a]", True), (r"\n", True), (r"[\t-\r]", True), (r"(?s)a.", True),
        (r"(?s:a.)", True), (r"\Aa", True), (r"a\Z", True), (r"x(?=\W)", True), (r"(a)(?(1)b|c)", True), (r"(?:ab|[\D])", True),
    ],
)  # fmt: skip
def test_what_may_see_beyond_its_line(regex: str, wide: bool) -> None:
    assert sees_beyond_line(re.compile(regex, re.MULTILINE)) is wide


@settings(max_examples=500, deadline=None)
@given(
    st.lists(st.sampled_from(PARTS + PLACES), min_size=1, max_size=6),
    st.text("ab \n", max_size=20),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_searching_by_needle_finds_the_same(parts: list[str], text: str, start: int, end: int) -> None:
    try:
        regex = re.compile("".join(parts), re.MULTILINE)
    except re.error:  # a repetition of a repetition
        return
    expected, found = regex.search(text, start, end), find(regex, text, start, end)
    assert (found and found.span()) == (expected and expected.span())
    spans = [match.span() for match in regex.finditer(text) if match.group()]
    assert [match.span() for match in find_all(regex, text)] == spans


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(PARTS + PLACES), min_size=1, max_size=6),
    st.lists(st.text("ab ", max_size=8), min_size=1, max_size=5),
)
def test_what_sees_its_line_only_matches_each_line_alone(parts: list[str], lines: list[str]) -> None:
    try:
        regex = re.compile("".join(parts), re.MULTILINE)
    except re.error:
        return
    if sees_beyond_line(regex):
        return
    whole = [match.group() for match in regex.finditer("\n".join(["", *lines, ""])) if match.group()]
    assert whole == [match.group() for line in lines for match in regex.finditer(line) if match.group()]
