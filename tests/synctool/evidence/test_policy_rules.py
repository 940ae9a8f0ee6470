"""``[[neutral]]`` and ``[[require]]`` in the policy."""

from __future__ import annotations

import pytest

from synctool.errors import ConfigError
from synctool.policy.loading import parse_policy
from synctool.policy.model import EvidenceKind

HEAD = 'schema = 1\n[upstream]\nname = "a"\n[downstream]\nname = "b"\n'


def test_defaults():
    (rule,) = parse_policy(HEAD + '[[neutral]]\npaths = ["docs/"]\nreason = "no code"\n').neutrals
    assert set(rule.kinds) == {EvidenceKind.TEST, EvidenceKind.PATCHES, EvidenceKind.IMAGE, EvidenceKind.E2E}
    assert EvidenceKind.CI not in rule.kinds, "CI itself depends on everything"


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ('[[neutral]]\npaths = ["docs/"]\n', 6, "needs 'reason'"),
        ('[[neutral]]\npaths = []\nreason = "none"\n', 7, "is empty"),
        ('[[neutral]]\npaths = ["{a,b}"]\nreason = "none"\n', 7, "braces"),
        ('[[neutral]]\npaths = ["a"]\nreason = "none"\nkinds = ["gpu"]\n', 9, "can't be 'gpu'"),
        ('[[require]]\nname = "x"\n', 6, "needs 'reason'"),
        ('[[require]]\nname = "x"\nreason = "why"\nkind = "ci"\n', 9, "unknown key 'kind'"),
        ('[neutral]\npaths = ["a"]\n', 6, "must be a list"),
    ],
)
def test_mistakes_are_told_with_their_line(text, line, says):
    with pytest.raises(ConfigError) as caught:
        parse_policy(HEAD + text, "vime-sync.toml")
    assert says in caught.value.title
    assert caught.value.where == f"vime-sync.toml:{line}"
