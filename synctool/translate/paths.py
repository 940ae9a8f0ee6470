"""From upstream's paths to downstream's, and the collisions that a set of paths would give."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from synctool.policy.model import PathRule, Policy
from synctool.translate.matcher import Matcher, Replacement
from synctool.translate.vocabulary import path_matcher


@dataclass(frozen=True)
class Collision:
    """Several upstream paths that would land on one downstream path, or one that would land on a native file (``native``)."""

    downstream: str
    upstream: tuple[str, ...]
    native: bool = False


class PathMap:
    """The path rules of a policy, compiled. The first rule that matches decides; without one the vocabulary is applied to the path."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._rules = [(rule, re.compile(rule.regex) if rule.regex is not None else None) for rule in policy.paths]
        self._known: dict[str, tuple[str, PathRule | None]] = {}

    @cached_property
    def _words(self) -> Matcher:
        return path_matcher(self._policy)

    def words(self, text: str) -> str:
        """The vocabulary alone, applied to a piece of a path or to the target of a symbolic link."""
        return self._words.replace(text)

    def trace(self, path: str) -> list[Replacement]:
        """What the vocabulary would replace in a path."""
        return list(self._words.find(path))

    def map(self, path: str) -> tuple[str, PathRule | None]:
        """The downstream path and the rule that decided (None: the vocabulary)."""
        known = self._known.get(path)
        if known is None:
            known = self._known[path] = self._map(path)
        return known

    def _map(self, path: str) -> tuple[str, PathRule | None]:
        for rule, regex in self._rules:
            through = (lambda text: text) if rule.keep else self.words
            if regex is not None:
                match = regex.fullmatch(path)
                if match is not None:
                    return _expand(match, rule.to, through), rule
                continue
            prefix = (rule.from_ or "").rstrip("/")
            if path == prefix:
                return rule.to, rule
            if path.startswith(prefix + "/"):
                target = rule.to.rstrip("/")
                rest = through(path[len(prefix) + 1 :])
                return f"{target}/{rest}" if target else rest, rule
        return self.words(path), None

    def collisions(self, paths: Iterable[str]) -> list[Collision]:
        """What would go wrong if all these upstream paths were mirrored. Paths that are excluded or ported land nowhere and don't count."""
        landing: dict[str, list[str]] = {}
        for path in paths:
            landing.setdefault(self.map(path)[0], []).append(path)
        found = []
        for target, sources in sorted(landing.items()):
            kind = self._policy.owner_of(target).kind
            if kind == "native" and any(source != target for source in sources):
                found.append(Collision(target, tuple(sorted(sources)), native=True))
            elif kind in ("mirror", "native") and len(sources) > 1:
                found.append(Collision(target, tuple(sorted(sources))))
        return found


def _expand(match: re.Match[str], template: str, through: object) -> str:
    """``match.expand`` with each group put through the vocabulary."""
    assert callable(through)

    def group(reference: re.Match[str]) -> str:
        name = reference.group(1) or reference.group(2)
        return str(through(match.group(int(name) if name.isdigit() else name) or ""))

    return re.sub(r"\\(?:(\d+)|g<(\w+)>)", group, template)
