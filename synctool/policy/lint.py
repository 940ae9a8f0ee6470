"""What is wrong with a policy that loads: rules that do nothing, hide one another, contradict one another or have run out.

``check_alone`` needs the policy only; ``check_against`` also needs what the two repositories hold, as plain values.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from synctool.policy.globs import matches
from synctool.policy.model import Exclude, Family, Flag, Owner, Policy, Rule, Scoped, Term
from synctool.translate import Translator
from synctool.translate.families import family_forms
from synctool.translate.translator import decode
from synctool.translate.vocabulary import compile_rules, family_literals, flag_literals, term_rules, word_rules

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One thing to look at: how bad, which check, where, what, and the fix."""

    level: Level
    check: str
    where: str
    message: str
    fix: str


@dataclass(frozen=True)
class Evidence:
    """What the repositories hold. ``upstream`` maps the paths of one upstream tree to contents; ``once`` are all paths that either
    side is known to have had; ``changes`` are (commit id, pull request number or None) of upstream's first-parent history, None if unknown.
    """

    upstream: Mapping[str, bytes]
    downstream: frozenset[str] = frozenset()
    once: frozenset[str] = frozenset()
    changes: tuple[tuple[str, int | None], ...] | None = None


@dataclass
class Checker:
    """Collects findings for one policy."""

    policy: Policy
    findings: list[Finding] = field(default_factory=list)

    def add(self, level: Level, check: str, rule: Rule, message: str, fix: str) -> None:
        """Record a finding at the line of a rule."""
        self.findings.append(Finding(level, check, self.policy.where(rule), f"{rule.describe()}: {message}", fix))


def check_alone(policy: Policy, today: datetime.date) -> list[Finding]:
    """Findings that need no repository."""
    checker = Checker(policy)
    _check_words(checker)
    _check_idempotence(checker)
    _check_path_rules(checker)
    _check_owner_globs(checker)
    _check_exclusions(checker, today)
    return checker.findings


def check_against(policy: Policy, translator: Translator, evidence: Evidence) -> list[Finding]:
    """Findings about rules that no longer do anything, and paths that collide."""
    checker = Checker(policy)
    paths = {translator.path(path) for path in (*evidence.upstream, *evidence.once)} | evidence.downstream
    _check_word_use(checker, translator, evidence)
    _check_scopes(checker, paths)
    _check_path_use(checker, translator, evidence)
    _check_owner_use(checker, paths)
    _check_exclusion_use(checker, evidence)
    for collision in translator.collisions(list(evidence.upstream)):
        sources = ", ".join(collision.upstream)
        rule = next((r for r in map(translator.path_rule, collision.upstream) if r is not None), policy)
        what = "falls on the native file" if collision.native else "fall together on"
        checker.findings.append(
            Finding(
                "error",
                "path-collision",
                policy.where(rule),
                f"{sources} {what} {collision.downstream}",
                "add a [[path]] rule that sends it elsewhere, or an [[owner]] rule that excludes it",
            )
        )
    return checker.findings


def _check_words(checker: Checker) -> None:
    """Two rules for one text."""
    policy = checker.policy
    seen: dict[tuple[str, bool], tuple[Scoped, str, int]] = {}
    for rule in word_rules(policy):
        literals = (
            family_literals(rule)
            if isinstance(rule, Family)
            else flag_literals(rule)
            if isinstance(rule, Flag)
            else term_rules(rule)[0]
            if isinstance(rule, Term)
            else []
        )
        for literal in literals:
            key = (literal.source, literal.inside)
            other = seen.get(key)
            if other is None:
                seen[key] = rule, literal.target, literal.rank
                continue
            first, target, rank = other
            if first is rule or (rule.is_scoped and first.is_scoped and rule.only != first.only):
                continue
            if literal.target == target:
                checker.add(
                    "warning",
                    "redundant",
                    rule,
                    f"'{literal.source}' is already replaced by {policy.where(first)}",
                    "remove one of the two",
                )
            elif rank == literal.rank and rule.is_scoped == first.is_scoped:
                checker.add(
                    "error",
                    "ambiguous",
                    rule,
                    f"'{literal.source}' is '{literal.target}' here and '{target}' at {policy.where(first)}",
                    "keep one, or limit them to different paths with 'only'",
                )
    for family in policy.families:
        unknown = [word for word in family.omit if word not in family.forms and word not in _all_forms(family)]
        if unknown:
            checker.add(
                "warning",
                "no-effect",
                family,
                f"'omit' names no spelling of it: {', '.join(unknown)}",
                "remove it from 'omit'",
            )
    families = compile_rules(list(policy.families))
    for flag in policy.flags:
        if (
            flag.to is not None
            and not flag.bare
            and all(families.replace(a.source) == a.target for a in flag_literals(flag))
        ):
            checker.add("warning", "redundant", flag, "the families give the same result", "remove the rule")


def _all_forms(family: Family) -> dict[str, str]:
    return family_forms(family.model_copy(update={"omit": ()}))


def _check_idempotence(checker: Checker) -> None:
    """A result that would be translated again: re-running would change it."""
    translator = Translator.from_policy(checker.policy)
    for rule in word_rules(checker.policy):
        targets: Iterable[str] = ()
        if isinstance(rule, Family):
            targets = {literal.target for literal in family_literals(rule)}
        elif isinstance(rule, Flag):
            targets = {literal.target for literal in flag_literals(rule)}
        elif isinstance(rule, Term) and (rule.regex is None or "\\" not in rule.to):
            targets = (rule.to,)
        path = next((glob for glob in rule.only if not set(glob) & set("*?[")), "")
        for target in sorted(targets):
            again = translator.text(target, path)
            if again != target:
                checker.add(
                    "warning",
                    "not-idempotent",
                    rule,
                    f"its result '{target}' would become '{again}' if translated again",
                    "protect the result, or narrow the rule that matches it",
                )


def _check_path_rules(checker: Checker) -> None:
    for position, rule in enumerate(checker.policy.paths):
        for earlier in checker.policy.paths[:position]:
            covered = (
                earlier.from_ is not None
                and rule.from_ is not None
                and (rule.from_ == earlier.from_ or rule.from_.startswith(earlier.from_.rstrip("/") + "/"))
            )
            if covered or (rule.regex is not None and rule.regex == earlier.regex):
                checker.add(
                    "error",
                    "shadowed",
                    rule,
                    f"the first match wins, and {checker.policy.where(earlier)} matches all of it",
                    "move the narrower rule up",
                )
                break


def _check_owner_globs(checker: Checker) -> None:
    later: dict[str, Owner] = {}
    for rule in reversed(checker.policy.owners):
        hidden = [glob for glob in rule.paths if glob in later]
        for glob in hidden:
            checker.add(
                "warning",
                "shadowed",
                rule,
                f"'{glob}' stands again at {checker.policy.where(later[glob])}, and the last match wins",
                "remove it here",
            )
        for glob in rule.paths:
            later.setdefault(glob, rule)


def _check_exclusions(checker: Checker, today: datetime.date) -> None:
    seen: dict[str, Exclude] = {}
    for rule in checker.policy.exclusions:
        if not rule.active(today):
            checker.add(
                "warning",
                "expired",
                rule,
                f"it ran out on {rule.expires}, so the change is no longer left out",
                "remove it, or set a later 'expires' with a fresh reason",
            )
        first = seen.setdefault(rule.describe(), rule)
        if first is not rule:
            checker.add(
                "warning",
                "redundant",
                rule,
                f"the same change is excluded at {checker.policy.where(first)}",
                "keep one",
            )


def _check_word_use(checker: Checker, translator: Translator, evidence: Evidence) -> None:
    used: Counter[int] = Counter()
    protecting: Counter[int] = Counter()
    for path, data in evidence.upstream.items():
        target = translator.path(path)
        text = None if translator.skips(target) is not None else decode(data)
        if text is None:
            continue
        used.update(id(found.rule) for found in translator.trace(text, target))
        protecting.update(id(span.rule) for span in translator.protected(text, target))
    in_paths = {id(found.rule) for path in evidence.upstream for found in translator.paths.trace(path)}
    for rule in word_rules(checker.policy):
        if not used[id(rule)] and id(rule) not in in_paths:
            checker.add(
                "warning",
                "no-effect",
                rule,
                "it replaces nothing in upstream's tree",
                "remove it, or check its spelling and 'only'; another rule may take every place first",
            )
    for rule in checker.policy.protected:
        if not protecting[id(rule)]:
            checker.add(
                "note", "no-effect", rule, "it protects nothing in upstream's tree", "remove it, or check its regex"
            )


def _check_scopes(checker: Checker, paths: set[str]) -> None:
    scoped: list[Scoped] = [*word_rules(checker.policy), *checker.policy.protected]
    for rule in scoped:
        for glob in (*rule.only, *rule.except_):
            if not any(matches(glob, path) for path in paths):
                checker.add(
                    "warning",
                    "no-effect",
                    rule,
                    f"the glob '{glob}' matches no downstream path",
                    "remove it, or check its spelling",
                )
    for glob in checker.policy.translate.skip:
        if not any(matches(glob, path) for path in paths):
            checker.findings.append(
                Finding(
                    "note",
                    "no-effect",
                    checker.policy.where(checker.policy.translate),
                    f"skip: the glob '{glob}' matches no downstream path",
                    "remove it",
                )
            )


def _check_path_use(checker: Checker, translator: Translator, evidence: Evidence) -> None:
    deciding = {id(translator.path_rule(path)) for path in (*evidence.upstream, *evidence.once)}
    for rule in checker.policy.paths:
        if id(rule) not in deciding:
            checker.add(
                "warning",
                "no-effect",
                rule,
                "it decides about no upstream path",
                "remove it, or check its spelling; an earlier rule may match first",
            )


def _check_owner_use(checker: Checker, paths: set[str]) -> None:
    policy = checker.policy
    for position, rule in enumerate(policy.owners):
        for glob in rule.paths:
            covered = [path for path in paths if matches(glob, path)]
            if not covered:
                checker.add(
                    "warning",
                    "no-effect",
                    rule,
                    f"the glob '{glob}' matches no path of either side",
                    "remove it, or check its spelling; globs name downstream paths",
                )
                continue
            deciders = {policy.owner_of(path).where for path in covered}
            later = {policy.where(other) for other in policy.owners[position + 1 :]}
            if deciders <= later:
                checker.add(
                    "warning",
                    "shadowed",
                    rule,
                    f"every path of '{glob}' is decided by {', '.join(sorted(deciders))}, as the last match wins",
                    "remove it, or move it down",
                )


def _check_exclusion_use(checker: Checker, evidence: Evidence) -> None:
    if evidence.changes is None:
        return
    for rule in checker.policy.exclusions:
        if not any(rule.names(pr=number, commit=commit) for commit, number in evidence.changes):
            checker.add(
                "note",
                "no-effect",
                rule,
                "no upstream change since the baseline has that number or id",
                "remove it once its change can no longer come, or fetch upstream",
            )
