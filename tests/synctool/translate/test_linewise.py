"""Lines translated one by one are what the whole file's translation has in their place, or there is no such translation."""

from hypothesis import given, settings
from hypothesis import strategies as st

from synctool.policy import parse_policy
from synctool.translate import Translator

POLICY = """
schema = 1
[upstream]
name = "slime"
[downstream]
name = "vime"
[translate]
skip = ["*.patch"]
[[family]]
from = "slime"
to = "vime"
[[family]]
from = "SGLang"
to = "vLLM"
[[term]]
regex = '''\\bTHUDM/slime$'''
to = "home/vime"
[[term]]
regex = '''kill (-\\d)[^\\n]*sglang'''
to = 'stop \\1'
[[term]]
regex = '''slime\\s+rulebook'''
to = "vime decides"
[[term]]
regex = '''two'''
to = '1\\n2'
[[term]]
from = "slime\\nsglang"
to = "both"
[[flag]]
from = "--sglang-dp-size"
to = "--vllm-data-parallel-size"
[[protect]]
name = "origins"
regex = '''# ref\\b[^\\n]*'''
[[protect]]
name = "blocks"
regex = '''@begin[^@]*?@end'''
[[protect]]
name = "licences"
regex = '''(?s)\\A.+\\Z'''
only = ["LICENSE"]
[[protect]]
name = "quotations"
text = "slime said"
only = ["*.md"]
"""
TRANSLATOR = Translator.from_policy(parse_policy(POLICY))
PIECES = [
    "slime", "Slime", "SGLangEngine", "sglang", "THUDM/slime", "kill -9 sglang", " rulebook", "two", "--sglang-dp-size", "# ref ", "@begin", "@end", "@",
    "slime said", "_", " ", "\n", "\n", "\r\n", "\u00e9", "\u7528", "\U0001f600", "\u2028", "x",
]  # fmt: skip
TEXT = st.lists(st.sampled_from(PIECES), max_size=24).map("".join)
PATHS = st.sampled_from(["a.py", "b.md", "LICENSE", "c.patch"])


@settings(max_examples=800, deadline=None)
@given(st.lists(st.tuples(TEXT, PATHS), min_size=1, max_size=3))
def test_lines_alone_are_lines_in_place(files: list[tuple[str, str]]) -> None:
    for text, path in files:
        data = text.encode()
        words = TRANSLATOR.by_line(data, path)
        if words is None:
            continue
        lines = data.split(b"\n")
        assert b"\n".join(words(lines)) == TRANSLATOR.content(data, path)
        assert words(lines[1:3]) == words(lines)[1:3]


def test_rules_that_see_more_are_noticed_where_they_might_act() -> None:
    assert TRANSLATOR.by_line(b"@begin\nslime\n@end\n", "a.py") is None
    assert TRANSLATOR.by_line(b"@begin\nslime\n", "a.py") is not None  # it does not match
    assert TRANSLATOR.by_line(b"one, two\n", "a.py") is None  # it would become two lines
    assert TRANSLATOR.by_line(b"slime\nsglang", "a.py") is None
    assert TRANSLATOR.by_line(b"slime\n", "LICENSE") is None
    assert TRANSLATOR.by_line(b"slime\n", "a.py") is not None


def test_what_is_not_translated_stays_line_by_line_too() -> None:
    for data, path in ((b"slime\n\xff", "a.py"), (b"\0slime\n", "a.py"), (b"@begin slime @end", "c.patch")):
        words = TRANSLATOR.by_line(data, path)
        assert words is not None
        assert words(data.split(b"\n")) == tuple(data.split(b"\n"))
