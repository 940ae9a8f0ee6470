"""Compiles a policy's word rules into matchers: which rules are in force depends on the path, and equal sets share one matcher."""

from __future__ import annotations

import re

from synctool.policy.model import Family, Flag, Policy, Scoped, Term
from synctool.translate.families import family_forms, flag_forms, identifier_form
from synctool.translate.matcher import ALNUM, FLAG, NOTHING, WORD, Literal, Matcher, Pattern

# Which rule wins where two name the very same text: what was written for it, before what follows from another entry.
TERM, FLAG_RANK, FAMILY = 0, 1, 2


def family_literals(family: Family) -> list[Literal]:
    """The literals of one family."""
    literals = [Literal(source, target, family, FAMILY) for source, target in family_forms(family).items()]
    inside = identifier_form(family)
    if inside is not None and family.from_ not in family.forms:
        literals.append(Literal(family.from_, inside, family, FAMILY, inside=True))
    return literals


def flag_literals(flag: Flag) -> list[Literal]:
    """The literals of one flag. A longer flag or name that only begins with it is another flag."""
    literals = []
    for source, target in flag_forms(flag).items():
        dashed = "-" in source
        before = NOTHING if source.startswith("--") else FLAG if dashed else ALNUM
        literals.append(Literal(source, target, flag, FLAG_RANK, not_before=before, not_after=FLAG if dashed else WORD))
    return literals


def term_rules(term: Term) -> tuple[list[Literal], list[Pattern]]:
    """The literal or the pattern of one term."""
    if term.regex is not None:
        return [], [Pattern(re.compile(term.regex, re.MULTILINE), term.to, term, TERM)]
    edge = WORD if term.word else NOTHING
    return [Literal(term.from_ or "", term.to, term, TERM, not_before=edge, not_after=edge)], []


def word_rules(policy: Policy) -> list[Scoped]:
    """The rules that replace words in content."""
    flags = [flag for flag in policy.flags if flag.to is not None or policy.translate.unmapped_flags == "keep"]
    return [*policy.terms, *flags, *policy.families]


def literals_and_patterns(rules: list[Scoped]) -> tuple[list[Literal], list[Pattern]]:
    """What a set of rules replaces."""
    literals: list[Literal] = []
    patterns: list[Pattern] = []
    for rule in rules:
        if isinstance(rule, Family):
            literals += family_literals(rule)
        elif isinstance(rule, Flag):
            literals += flag_literals(rule)
        elif isinstance(rule, Term):
            more_literals, more_patterns = term_rules(rule)
            literals += more_literals
            patterns += more_patterns
    return literals, patterns


def compile_rules(rules: list[Scoped]) -> Matcher:
    """One matcher for a set of rules."""
    return Matcher(*literals_and_patterns(rules))


def path_matcher(policy: Policy) -> Matcher:
    """The matcher for paths: families, and terms that ask for it, whatever their scope."""
    rules: list[Scoped] = [family for family in policy.families if family.paths]
    return compile_rules([*rules, *(term for term in policy.terms if term.paths)])
