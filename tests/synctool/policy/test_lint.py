"""The linter: each finding has a policy that shows it, and a clean policy shows none."""

import datetime

import pytest

from synctool.policy import parse_policy
from synctool.policy.lint import Evidence, Finding, check_against, check_alone
from synctool.translate import Translator

HEAD = 'schema = 1\n[upstream]\nname = "up"\n[downstream]\nname = "down"\n'
TODAY = datetime.date(2030, 1, 1)


def alone(rules: str) -> list[Finding]:
    return check_alone(parse_policy(HEAD + rules, "p"), TODAY)


def against(rules: str, evidence: Evidence) -> list[Finding]:
    policy = parse_policy(HEAD + rules, "p")
    return check_against(policy, Translator.from_policy(policy), evidence)


CLEAN = """
[translate]
skip = ["*.bin"]
[[family]]
from = "Up"
to = "Down"
[[term]]
regex = '''\\bold (\\w+)'''
to = 'new \\1'
only = ["docs/"]
[[flag]]
from = "--up-size"
to = "--down-count"
[[protect]]
name = "links"
regex = '''https://up/\\d+'''
[[path]]
from = "core/"
to = "lib/"
[[owner]]
paths = ["/mine.md"]
owner = "native"
reason = "ours"
[[exclude]]
pr = 7
reason = "not wanted"
owner = "me"
"""
EVIDENCE = Evidence(
    upstream={"core/a.py": b"Up --up-size https://up/1", "docs/x.md": b"old thing", "a.bin": b"Up"},
    downstream=frozenset({"mine.md", "lib/a.py"}),
    changes=(("a" * 40, 7), ("b" * 40, None)),
)


def test_a_clean_policy_has_no_findings() -> None:
    assert alone(CLEAN) == []
    assert against(CLEAN, EVIDENCE) == []


@pytest.mark.parametrize(
    ("rules", "level", "check", "line", "says"),
    [
        ("[[term]]\nfrom = 'a'\nto = 'b'\n[[term]]\nfrom = 'a'\nto = 'c'\n", "error", "ambiguous", 9, "'a' is 'c' here and 'b' at p:6"),
        ("[[term]]\nfrom = 'a'\nto = 'b'\n[[term]]\nfrom = 'a'\nto = 'b'\n", "warning", "redundant", 9, "already replaced by p:6"),
        ("[[family]]\nfrom = 'Up'\nto = 'Dn'\n[[term]]\nfrom = 'up'\nto = 'dn'\n", "warning", "redundant", 6, "already replaced by p:9"),
        ("[[family]]\nfrom = 'Up'\nto = 'Dn'\n[[flag]]\nfrom = '--up-x'\nto = '--dn-x'\n", "warning", "redundant", 9, "families give the same"),
        ("[[term]]\nfrom = 'ab'\nto = 'cab'\n", "warning", "not-idempotent", 6, "'cab' would become 'ccab'"),
        ("[[term]]\nregex = 'kill up'\nto = 'kill -f up'\n[[family]]\nfrom = 'up'\nto = 'dn'\n", "warning", "not-idempotent", 6, "kill -f dn"),
        ("[[path]]\nfrom = 'a'\nto = 'b'\n[[path]]\nfrom = 'a/c'\nto = 'd'\n", "error", "shadowed", 9, "p:6 matches all of it"),
        ("[[owner]]\npaths = ['a']\nowner = 'native'\nreason = 'one'\n".replace("one", "first") * 2, "warning", "shadowed", 6, "stands again at p:10"),
        ("[[exclude]]\npr = 1\nreason = 'why so'\nowner = 'me'\nexpires = 2030-01-01\n", "warning", "expired", 6, "ran out on 2030-01-01"),
        ("[[exclude]]\npr = 1\nreason = 'why so'\nowner = 'me'\n" * 2, "warning", "redundant", 10, "p:6"),
        ("[[family]]\nfrom = 'Up'\nto = 'Dn'\nomit = ['uP']\n", "warning", "no-effect", 6, "names no spelling"),
    ],
)  # fmt: skip
def test_findings_of_the_file_alone(rules: str, level: str, check: str, line: int, says: str) -> None:
    found = [one for one in alone(rules) if one.check == check]
    assert [(one.level, one.where) for one in found] == [(level, f"p:{line}")]
    assert says in found[0].message
    assert found[0].fix


def test_a_term_that_overrides_a_family_on_purpose_is_no_finding() -> None:
    assert (
        alone("[[family]]\nfrom = 'Up'\nto = 'Dn'\n[[term]]\nfrom = 'up'\nto = 'Dn proper'\nonly = ['docs/']\n") == []
    )


@pytest.mark.parametrize(
    ("rules", "level", "check", "says"),
    [
        ("[[term]]\nfrom = 'zzz'\nto = 'y'\n", "warning", "no-effect", "replaces nothing"),
        ("[[term]]\nfrom = 'old'\nto = 'y'\nonly = ['docs/', 'nowhere/']\n", "warning", "no-effect", "'nowhere/' matches no downstream path"),
        ("[[protect]]\nname = 'x'\ntext = 'zzz'\n", "note", "no-effect", "protects nothing"),
        ("[translate]\nskip = ['*.zip']\n", "note", "no-effect", "'*.zip' matches no"),
        ("[[path]]\nfrom = 'gone/'\nto = 'x/'\n", "warning", "no-effect", "decides about no upstream path"),
        ("[[path]]\nfrom = 'docs/x.md'\nto = 'a.bin'\n", "error", "path-collision", "a.bin, docs/x.md fall together on a.bin"),
        (
            "[[path]]\nfrom = 'docs/x.md'\nto = 'm.md'\n[[owner]]\npaths = ['m.md']\nowner = 'native'\nreason = 'ours'\n",
            "error", "path-collision", "native file m.md",
        ),
        ("[[owner]]\npaths = ['nowhere/']\nowner = 'native'\nreason = 'ours'\n", "warning", "no-effect", "'nowhere/' matches no path"),
        (
            "[[owner]]\npaths = ['/docs/x.md']\nowner = 'native'\nreason = 'ours'\n[[owner]]\npaths = ['/docs/']\nowner = 'exclude'\nreason = 'out'\n",
            "warning", "shadowed", "decided by p:10",
        ),
        ("[[exclude]]\npr = 8\nreason = 'why so'\nowner = 'me'\n", "note", "no-effect", "no upstream change"),
    ],
)  # fmt: skip
def test_findings_against_both_trees(rules: str, level: str, check: str, says: str) -> None:
    found = [one for one in against(rules, EVIDENCE) if one.check == check]
    assert [one.level for one in found] == [level]
    assert says in found[0].message
    assert found[0].fix


def test_paths_of_the_past_keep_a_rule_alive() -> None:
    past = Evidence(EVIDENCE.upstream, EVIDENCE.downstream, once=frozenset({"gone/a"}), changes=None)
    assert (
        against(
            "[[owner]]\npaths = ['/gone/']\nowner = 'exclude'\nreason = 'out'\n[[exclude]]\npr = 8\nreason = 'why'\nowner = 'me'\n",
            past,
        )
        == []
    )
