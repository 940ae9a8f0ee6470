"""A needle must be in every text that its regex matches."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synctool.translate.needle import needle


@pytest.mark.parametrize(
    ("regex", "text"),
    [
        (r"\bTHUDM/slime\b", "THUDM/slime"), (r"a|bcd", ""), (r"(?:abc)?de", "de"), (r"ab+cd", "cd"), (r"x(abc)yz", "yz"), (r"(?i)abc", ""),
        (r"https?://lmsys\.org/", "://lmsys.org/"), (r"^# (?:ref|from)", "# "), (r"[a-z]", ""), (r"a(?!b)cde", "cde"),
    ],
)  # fmt: skip
def test_needles(regex: str, text: str) -> None:
    assert needle(re.compile(regex, re.MULTILINE)) == text


@given(
    st.lists(
        st.sampled_from(["a", "b", "ab", "a?", "b+", "(ab)", "(?:a|b)", "[ab]", "^", "(?=a)", "b{2}", "b{0,1}"]),
        max_size=6,
    ),
    st.text("ab\n", max_size=12),
)
def test_no_match_without_its_needle(parts: list[str], text: str) -> None:
    regex = re.compile("".join(parts), re.MULTILINE)
    for match in regex.finditer(text):
        assert needle(regex) in match.group()
