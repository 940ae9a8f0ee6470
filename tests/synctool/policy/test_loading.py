"""Loading: each kind of mistake gives one line with the file, the line and the fix."""

import datetime
import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synctool.errors import ConfigError
from synctool.policy import load_policy, parse_policy
from synctool.policy.loading import find_policy
from synctool.policy.model import json_schema
from synctool.policy.toml_lines import LineIndex

HEAD = 'schema = 1\n[upstream]\nname = "up"\n[downstream]\nname = "down"\n'  # 5 lines

OWNER = 'owner = "native"\nreason = "because"\n'

MISTAKES = {
    "no schema": ('[upstream]\nname = "u"\n[downstream]\nname = "d"\n', 1, "the policy needs 'schema'", "add 'schema = 1' as the first line"),
    "future schema": (HEAD.replace("1", "2", 1), 1, "'schema' can't be 2", "use 1"),
    "no downstream": ('schema = 1\n[upstream]\nname = "u"\n', 1, "the policy needs 'downstream'", "add a [downstream] table"),
    "syntax": (HEAD + "\n[[term]]\nfrom = \n", 8, "not valid TOML", "literal strings"),
    "unclosed": (HEAD + 'x = "a', 6, "not valid TOML", "literal strings"),
    "misspelt key": (HEAD + '\n[[owner]]\npaths = ["a"]\nreasn = "because"\n' + OWNER, 9, "[[owner]] #1 has an unknown key 'reasn'", "did you mean 'reason'?"),
    "unknown table": (HEAD + '\n[[owners]]\npaths = ["a"]\n', 7, "the policy has an unknown key 'owners'", "did you mean 'owner'?"),
    "no reason": (HEAD + '\n[[owner]]\npaths = ["a"]\nowner = "native"\n', 7, "[[owner]] #1 needs 'reason'", "add reason = "),
    "short reason": (HEAD + '\n[[owner]]\npaths = ["a"]\nowner = "native"\nreason = "  "\n', 10, "[[owner]] #1 reason is too short", "at least 3"),
    "bad owner": (HEAD + '\n[[owner]]\npaths = ["a"]\nowner = "mine"\nreason = "because"\n', 9, "[[owner]] #1 owner can't be 'mine'", "'native'"),
    "no paths": (HEAD + '\n[[owner]]\npaths = []\nowner = "native"\nreason = "because"\n', 8, "[[owner]] #1 paths is empty", "at least one"),
    "paths as text": (HEAD + '\n[[owner]]\npaths = "a"\nowner = "native"\nreason = "because"\n', 8, "[[owner]] #1 paths must be a list", "a list"),
    "bad glob, second line of a list": (HEAD + '\n[[owner]]\npaths = [\n  "a", # fine\n  "*.{md,rst}",\n]\n' + OWNER, 10, "braces", "separate globs"),
    "one table for many": (HEAD + '\n[owner]\npaths = ["a"]\n', 7, "[[owner]] must be a list", "[[owner]]"),
    "regex": (HEAD + "\n[[term]]\nto = 'x'\nregex = '('\n", 9, "does not compile", "escape"),
    "regex braces": (HEAD + "\n[[term]]\nto = 'x'\nregex = 'a{2}('\n", 9, "does not compile", "escape"),
    "empty regex": (HEAD + "\n[[term]]\nregex = 'a*'\nto = 'x'\n", 8, "matches the empty text", "mandatory"),
    "group": (HEAD + "\n[[term]]\nregex = '(a)'\nto = '\\2'\n", 7, "the group 2", "count the parentheses"),
    "two kinds of term": (HEAD + "\n[[term]]\nregex = 'a'\nfrom = 'a'\nto = 'b'\n", 7, "either 'from' or 'regex'", "keep one"),
    "flag without dashes": (HEAD + "\n[[flag]]\nfrom = 'dp-size'\nto = '--x-y'\n", 8, "'dp-size' is not a long flag", "command line"),
    "flag without target": (HEAD + "\n[[flag]]\nfrom = '--up-x'\n", 7, "either 'to' or 'report'", "say in 'report'"),
    "path that leaves": (HEAD + "\n[[path]]\nfrom = 'a'\nto = '../b'\n", 9, "'../b' leaves the tree", "from the root"),
    "exclusion without owner": (HEAD + "\n[[exclude]]\npr = 7\nreason = 'because'\n", 7, "[[exclude]] #1 needs 'owner'", "who answers"),
    "exclusion of nothing": (HEAD + "\n[[exclude]]\nowner = 'me'\nreason = 'because'\n", 7, "either 'pr' or 'commit'", "keep one"),
    "exclusion number": (HEAD + "\n[[exclude]]\npr = -7\nowner = 'me'\nreason = 'because'\n", 8, "[[exclude]] #1 pr", "-7"),
    "commit": (HEAD + "\n[[exclude]]\ncommit = 'v1.0'\nowner = 'me'\nreason = 'because'\n", 8, "is not a commit id", "hexadecimal"),
    "date": (HEAD + "\n[[exclude]]\npr = 7\nexpires = 'soon'\nowner = 'me'\nreason = 'because'\n", 9, "[[exclude]] #1 expires", "'soon'"),
    "deleted": (HEAD + "\n[deleted]\nonce_deleted = 'maybe'\n", 8, "[deleted] once_deleted can't be 'maybe'", "'stays-deleted'"),
    "protect": (HEAD + "\n[[protect]]\nname = 'x'\n", 7, "either 'text' or 'regex'", "keep one"),
    "second rule": (HEAD + "\n[[flag]]\nfrom = '--a-b'\nto = '--c-d'\n\n[[flag]]\nfrom = '--a-c'\n", 11, "[[flag]] #2", "report"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_names_file_line_and_fix(name: str) -> None:
    text, line, title, fix = MISTAKES[name]
    with pytest.raises(ConfigError) as caught:
        parse_policy(text, "vime-sync.toml")
    assert caught.value.where == f"vime-sync.toml:{line}"
    assert title in caught.value.title
    assert fix in (caught.value.hint or "")
    assert caught.value.exit_code == 3


def test_several_mistakes_are_told_at_once_in_file_order() -> None:
    text = HEAD + "\n[[flag]]\nfrom = 'a'\nto = '--b-c'\n\n[[term]]\nfrom = 'x'\nto = 'y'\nwrod = true\n"
    with pytest.raises(ConfigError) as caught:
        parse_policy(text, "p.toml")
    assert caught.value.where == "p.toml:8"
    assert "also p.toml:14: [[term]] #1 has an unknown key 'wrod'" in (caught.value.hint or "")


def test_files_that_are_not_there_or_not_text(tmp_path) -> None:
    with pytest.raises(ConfigError, match="can't read"):
        load_policy(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"schema = 1\n# caf\xe9\n")
    with pytest.raises(ConfigError) as caught:
        load_policy(tmp_path / "latin.toml")
    assert str(caught.value.where).endswith("latin.toml:2")


def test_rules_know_their_lines_and_windows_line_ends_do_not_matter() -> None:
    text = (
        HEAD
        + "\n[[family]]\nfrom = 'Up'\nto = 'Down'\n\n[[owner]]\npaths = ['a']\nowner = 'native'\nreason = 'because'\n"
    )
    for policy in (parse_policy(text, "p"), parse_policy(text.replace("\n", "\r\n"), "p")):
        assert policy.where(policy.families[0]) == "p:7"
        assert policy.owner_of("a/b") == ("native", "a", "because", "p:11")


def test_the_last_owner_that_matches_wins_and_the_default_is_mirror() -> None:
    policy = parse_policy(
        HEAD
        + "[[owner]]\npaths = ['docs/']\nowner = 'native'\nreason = 'ours'\n"
        + "[[owner]]\npaths = ['/docs/api/']\nowner = 'mirror'\nreason = 'theirs after all'\n"
    )
    assert policy.owner_of("docs/a.md").kind == "native"
    assert policy.owner_of("docs/api/a.md").kind == "mirror"
    assert policy.owner_of("src/a.py").rule == "default"


def test_an_exclusion_holds_until_it_expires() -> None:
    policy = parse_policy(
        HEAD
        + "[[exclude]]\npr = 7\nreason = 'waits'\nowner = 'me'\nexpires = 2030-01-02\n[[exclude]]\ncommit = 'abcdef1'\nreason = 'not wanted'\nowner = 'me'\n"
    )
    before, after = datetime.date(2030, 1, 1), datetime.date(2030, 1, 2)
    assert policy.exclusion_of(pr=7, today=before) is policy.exclusions[0]
    assert policy.exclusion_of(pr=7, today=after) is None
    assert policy.exclusion_of(commit="abcdef1234", today=after) is policy.exclusions[1]
    assert policy.exclusion_of(pr=8, commit="abcdee1234", today=before) is None


def test_the_schema_describes_every_table() -> None:
    schema = json_schema()
    assert set(schema["properties"]) >= {
        "schema",
        "upstream",
        "downstream",
        "family",
        "term",
        "flag",
        "protect",
        "path",
        "owner",
        "exclude",
        "deleted",
    }
    assert schema["additionalProperties"] is False


KEY = st.one_of(
    st.text("abz_-09", min_size=1, max_size=4),
    st.text("a. #='é", min_size=1, max_size=4).map(lambda key: '"' + key + '"'),
)
SCALAR = st.sampled_from(
    [
        "1",
        "true",
        '"a # [b] = c"',
        "'x = \"y'",
        '"""\nmany\n[[lines]]\n"""',
        "'''\n# not a comment\n'''",
        "2030-01-02",
        "-1.5e3",
        '"\\"]"',
    ]
)
VALUE = st.recursive(
    SCALAR,
    lambda inner: st.lists(inner, max_size=3).map(lambda items: "[\n" + ",\n# c, ]\n".join(items) + "\n]")
    | st.dictionaries(KEY, inner, max_size=2).map(lambda d: "{ " + ", ".join(f"{k} = {v}" for k, v in d.items()) + " }"),
    max_leaves=5,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["[a]", "[[b]]", "[a.c]", "[[b.d]]", "# note", ""]), st.dictionaries(KEY, VALUE, max_size=3)
        ),
        max_size=5,
    )
)
def test_the_line_index_finds_every_value_that_tomllib_finds(blocks) -> None:
    text = "".join(f"{head}\n" + "".join(f"{k} = {v}\n" for k, v in pairs.items()) for head, pairs in blocks)
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    index = LineIndex(text)
    lines = text.split("\n")

    def walk(value, place) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(inner, (*place, key))
        elif isinstance(value, list):
            for number, inner in enumerate(value):
                walk(inner, (*place, number))
        if place and not (isinstance(value, dict) and place not in index.lines):
            assert place in index.lines
            if isinstance(place[-1], str):
                assert place[-1] in lines[index.line(place) - 1]

    walk(raw, ())


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "vime-sync.toml"
    path.write_bytes(b"\xef\xbb\xbfschema = 2\n")
    with pytest.raises(ConfigError) as caught:
        load_policy(path)
    assert "TOML" not in caught.value.title


@pytest.mark.parametrize("kind", ["folder", "pipe", "loop", "dangling"])
def test_a_policy_that_is_no_file_is_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "vime-sync.toml"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path if kind == "loop" else tmp_path / "nowhere")
    with pytest.raises(ConfigError) as caught:
        load_policy(find_policy(tmp_path))
    assert caught.value.where == str(path)
    assert "policy" in caught.value.title
