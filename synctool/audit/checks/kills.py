"""One rule for ending the engine's processes, applied everywhere."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from synctool.audit.context import Audit
from synctool.audit.finding import Edit, Hit, Rule

RULE = Rule(
    "kill-pattern",
    "the engine's processes are ended by another pattern than elsewhere",
    "a pattern that misses some leaves servers behind that hold the GPU's memory",
)
RULES = (RULE,)

_KILL = re.compile(
    r"\b(?:pkill|killall)(?:\s+-{1,2}[\w=-]+)*\s+(?:'[^'\n]*'|\"[^\"\n]*\"|\\\"[^\"\n]*\\\"|[^\s;&|'\"()]+)"
)


def check(audit: Audit) -> Iterator[Hit]:
    """The right pattern is the policy's; without one, the most frequent."""
    words = {word.lower() for family in audit.policy.families for word in (family.to, family.from_)}
    own = {audit.policy.downstream.name.lower(), audit.policy.upstream.name.lower()}
    engine = re.compile("|".join(sorted(map(re.escape, words - own))) or r"(?!)")
    found: list[tuple[str, int, str]] = []
    for path in audit.tree.ending(".sh", ".py", ".yml", ".yaml", ".md", ".rst", "justfile"):
        if "pkill" not in (audit.tree.text(path) or "") and "killall" not in (audit.tree.text(path) or ""):
            continue
        for number, line in enumerate(audit.tree.lines(path), 1):
            found += [(path, number, kill) for kill in _KILL.findall(line) if engine.search(_bare(kill))]
    if not found:
        return
    right = _policy_kill(audit) or _normal(Counter(_normal(kill) for _, _, kill in found).most_common(1)[0][0])
    for path, number, kill in found:
        if _normal(kill) != _normal(right):
            edit = Edit(path, number, kill, right) if not path.endswith(".py") else None
            yield Hit(RULE, "engine", path, number, f"'{kill}' where the rule is: {right}", f"write: {right}", edit)


def _bare(kill: str) -> str:
    return re.sub(r"[\[\]'\"\\]", "", kill).lower()


def _normal(kill: str) -> str:
    return re.sub(r"\s+", " ", kill.replace('\\"', "'").replace('"', "'"))


def _policy_kill(audit: Audit) -> str | None:
    return next((term.to for term in audit.policy.terms if term.to.startswith(("pkill", "killall"))), None)
