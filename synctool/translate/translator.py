"""The translator: content, text and paths in downstream's words. Pure: no git, no files; callers memoise by (object id, path)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from synctool.policy.globs import first_match
from synctool.policy.model import PathRule, Policy, Protect, Scoped
from synctool.translate.linewise import LineWords, wide_rules
from synctool.translate.matcher import Matcher, Replacement, Span
from synctool.translate.needle import find_all
from synctool.translate.paths import Collision, PathMap
from synctool.translate.residue import Residue, ResidueScanner
from synctool.translate.vocabulary import compile_rules, word_rules

#: As git does: a NUL in the first bytes makes a file binary.
BINARY_PROBE = 8000
_AS_THEY_ARE = LineWords()


def decode(data: bytes) -> str | None:
    """The text of a file, or None for one that is binary or not UTF-8."""
    if b"\0" in data[:BINARY_PROBE]:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


@dataclass(frozen=True)
class ProtectedSpan:
    """``text[start:end]`` is protected by ``rule``."""

    start: int
    end: int
    rule: Protect


class Translator:
    """A compiled policy. Build it once (``from_policy``) and use it for all files."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.paths = PathMap(policy)
        self._rules = word_rules(policy)
        self._scoped = tuple(rule for rule in (*self._rules, *policy.protected) if rule.is_scoped)
        self._matchers: dict[frozenset[int], Matcher] = {}
        self._residue = ResidueScanner(policy)
        self._wide = wide_rules([*self._rules, *policy.protected])
        self._line_words: dict[frozenset[int], LineWords] = {}
        self._off = lru_cache(maxsize=65536)(self._find_off)

    @classmethod
    def from_policy(cls, policy: Policy) -> Translator:
        """The translator of a policy."""
        return cls(policy)

    def path(self, upstream_path: str) -> str:
        """The downstream path of an upstream path."""
        return self.paths.map(upstream_path)[0]

    def path_rule(self, upstream_path: str) -> PathRule | None:
        """The path rule that decides, or None when the vocabulary does."""
        return self.paths.map(upstream_path)[1]

    def link(self, target: bytes) -> bytes:
        """The target of a symbolic link, with the vocabulary applied; unchanged when it is not UTF-8."""
        text = decode(target)
        return target if text is None else self.paths.words(text).encode()

    def collisions(self, upstream_paths: Sequence[str]) -> list[Collision]:
        """Upstream paths that would land on one another or on a native file."""
        return self.paths.collisions(upstream_paths)

    def skips(self, downstream_path: str) -> str | None:
        """The glob of ``translate.skip`` that keeps this file's content as upstream wrote it, or None."""
        return first_match(self.policy.translate.skip, downstream_path)

    def content(self, data: bytes, downstream_path: str) -> bytes:
        """A file's content in downstream's words. Binary, undecodable and skipped files come back as the same object, as does
        a file in which nothing is to be replaced."""
        if self.skips(downstream_path) is not None:
            return data
        text = decode(data)
        if text is None:
            return data
        translated = self.text(text, downstream_path)
        return data if translated is text else translated.encode()

    def by_line(self, data: bytes, downstream_path: str) -> LineWords | None:
        """What translates single lines of this file to just what ``content`` makes of them there; None where a rule sees more of it than a line."""
        text = None if self.skips(downstream_path) is not None else decode(data)
        if text is None:
            return _AS_THEY_ARE
        off = self._off(downstream_path)
        if any(id(rule) not in off and looks(text) for rule, looks in self._wide):
            return None
        words = self._line_words.get(off)
        if words is None:
            words = self._line_words[off] = LineWords(partial(self.text, downstream_path=downstream_path))
        return words

    def text(self, text: str, downstream_path: str = "") -> str:
        """A text in downstream's words, as if it stood in the given file."""
        return self._matcher(downstream_path).replace(text, self._spans(text, downstream_path))

    def trace(self, text: str, downstream_path: str = "") -> list[Replacement]:
        """What ``text`` replaces, each with its rule."""
        return list(self._matcher(downstream_path).find(text, self._spans(text, downstream_path)))

    def protected(self, text: str, downstream_path: str = "") -> list[ProtectedSpan]:
        """The protected spans of a text, in order; those of different rules may overlap."""
        off = self._off(downstream_path)
        found = [
            ProtectedSpan(match.start(), match.end(), rule)
            for rule in self.policy.protected
            if id(rule) not in off
            for match in find_all(rule.pattern, text)
        ]
        return sorted(found, key=lambda span: (span.start, span.end))

    def residue(self, data: bytes, downstream_path: str) -> list[Residue]:
        """Upstream's words left in a file that was translated, outside protected spans; none in binary, undecodable and skipped files."""
        text = None if self.skips(downstream_path) is not None else decode(data)
        return [] if text is None else self._residue.scan(text, self._spans(text, downstream_path))

    def _spans(self, text: str, path: str) -> list[Span]:
        """Protected spans, merged."""
        merged: list[Span] = []
        for span in self.protected(text, path):
            if merged and span.start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], span.end))
            else:
                merged.append((span.start, span.end))
        return merged

    def _find_off(self, path: str) -> frozenset[int]:
        """Ids of the scoped rules that are not in force for a path."""
        return frozenset(id(rule) for rule in self._scoped if not rule.holds_for(path))

    def _matcher(self, path: str) -> Matcher:
        off = self._off(path)
        matcher = self._matchers.get(off)
        if matcher is None:
            rules: list[Scoped] = [rule for rule in self._rules if id(rule) not in off]
            matcher = self._matchers[off] = compile_rules(rules)
        return matcher
