"""From counted word changes to families, flags and terms."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from synctool.policy.learn.align import Changes, shorten
from synctool.policy.learn.evidence import Support
from synctool.policy.model import Family
from synctool.translate.families import family_forms, identifier_form
from synctool.translate.vocabulary import compile_rules

MIN_FAMILY, MIN_FLAG, MIN_TERM = 5, 2, 4
FLAG = re.compile(r"--[a-z0-9]+(?:-[a-z0-9]+)+")


@dataclass(frozen=True)
class LearnedFamily:
    """A family, how many occurrences of its words were replaced as it says, and that for each spelling."""

    family: Family
    support: Support
    spellings: Mapping[str, Support]


@dataclass(frozen=True)
class LearnedWord:
    """A flag or a literal term; ``target`` None means that there is no single target."""

    source: str
    target: str | None
    support: Support


@dataclass
class Vocabulary:
    """All that was learned of words."""

    families: list[LearnedFamily] = field(default_factory=list)
    flags: list[LearnedWord] = field(default_factory=list)
    terms: list[LearnedWord] = field(default_factory=list)
    #: Of the lines of all paired files, how many equal the translation.
    equal: Support = field(default_factory=lambda: Support(0, 0))

    def translate(self) -> Callable[[str], str]:
        """The learned families, applied."""
        return compile_rules([learned.family for learned in self.families]).replace


def learn_vocabulary(texts: Iterable[tuple[str, str]], path_words: Mapping[tuple[str, str], Support]) -> Vocabulary:
    """Learn from pairs of (upstream text, downstream text), and from the words that are replaced in paths.

    Two rounds: families from the raw texts; then, with those applied, the flags and terms that they do not explain.
    """
    pairs = list(texts)
    raw = Changes()
    for old, new in pairs:
        raw.add(old, new)
    result = Vocabulary(families=_families(raw, path_words))
    rest = Changes()
    translate = result.translate()
    for old, new in pairs:
        rest.add(old, new, translate)
    result.flags = _flags(rest)
    prefixes = {learned.family.from_.lower() for learned in result.families}
    result.flags += _dropped_flags(rest, prefixes, {learned.source for learned in result.flags})
    result.terms = _terms(rest, result)
    result.equal = Support(rest.equal, rest.lines)
    return result


def _families(changes: Changes, path_words: Mapping[tuple[str, str], Support]) -> list[LearnedFamily]:
    groups: dict[tuple[str, str], Counter[tuple[str, str, bool]]] = defaultdict(Counter)
    for (a, b, inside), count in changes.core.items():
        if a.isalpha() and b.isalnum() and len(a) >= 3 and len(b) >= 2 and a.lower() != b.lower():
            groups[a.lower(), b.lower()][a, b, inside] += count
    seeds = {(a.lower(), b.lower()) for a, b in path_words}
    kept_text = "\n".join(changes.kept)
    kept_lower = kept_text.lower()
    learned = []
    for (low_a, low_b), seen in sorted(groups.items()):
        total = sum(seen.values())
        rivals = sum(sum(other.values()) for (a, b), other in groups.items() if a == low_a and b != low_b)
        spellings = {a for a, _, _ in seen}
        if total < MIN_FAMILY or total < rivals or not ((low_a, low_b) in seeds or len(spellings) >= 2):
            continue
        kept = kept_lower.count(low_a)
        if total < kept and (low_a, low_b) not in seeds:
            continue
        family = _family(seen)
        outcome = _spelling_support(family, seen, kept_text)
        agreeing = sum(support.seen for support in outcome.values())
        learned.append(LearnedFamily(family, Support(agreeing, total + rivals + kept), outcome))
    return sorted(learned, key=lambda one: -one.support.seen)


def _family(seen: Counter[tuple[str, str, bool]]) -> Family:
    """The entry that gives most of what was seen: written as in prose, with only those spellings listed that do not follow from it."""
    best: dict[tuple[str, bool], str] = {}
    for (a, b, inside), _ in sorted(seen.items(), key=lambda item: (item[1], item[0])):
        best[a, inside] = b
    prose = Counter({(a, b): count for (a, b, inside), count in seen.items() if not inside})
    mixed = [pair for pair in prose if pair[0] not in (pair[0].lower(), pair[0].upper(), pair[0].capitalize())]
    ranked = sorted(
        mixed or [pair for pair in prose if pair[0].islower()] or list(prose) or [(a, b) for a, b, _ in seen],
        key=lambda pair: (-prose[pair], pair),
    )
    source, target = ranked[0]
    family = Family.model_validate({"from": source, "to": target})
    inside_form = best.get((source, True))
    derived = identifier_form(family)
    if inside_form is not None and inside_form != (derived or target) and seen[source, inside_form, True] >= 3:
        family = family.model_copy(update={"identifier": inside_form})
    return family


def _spelling_support(family: Family, seen: Counter[tuple[str, str, bool]], kept: str) -> dict[str, Support]:
    """For each spelling of the family, how often what was seen agrees with it."""
    result = {}
    for source, target in family_forms(family).items():
        expected = {target, identifier_form(family) or target} if source == family.from_ else {target}
        changed = {key: count for key, count in seen.items() if key[0] == source}
        total = sum(changed.values()) + kept.count(source)
        if total:
            result[source] = Support(sum(count for (_, b, _), count in changed.items() if b in expected), total)
    return result


def _flags(changes: Changes) -> list[LearnedWord]:
    """Flags whose name changed in a way of its own, and flags that mostly went away."""
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    for (a, b), count in changes.whole.items():
        if FLAG.fullmatch(a) and FLAG.fullmatch(b):
            votes[a][b] += count
    gone = Counter(match.group() for text in changes.dropped for match in FLAG.finditer(text))
    kept = Counter(match.group() for text in changes.kept for match in FLAG.finditer(text))
    learned = []
    for flag in sorted(set(votes) | set(gone)):
        target, count = max(votes[flag].items(), key=lambda item: (item[1], item[0]), default=(None, 0))
        others = sum(votes[flag].values()) - count
        total = count + others + kept[flag] + gone[flag]
        # Places where it went away say little: a script may need fewer flags. Other targets and survivors contradict.
        if target is not None and count >= MIN_FLAG and count > others + kept[flag] and count >= 0.3 * total:
            learned.append(LearnedWord(flag, target, Support(count, total)))
    return sorted(learned, key=lambda one: (-one.support.seen, one.source))


def _dropped_flags(changes: Changes, prefixes: set[str], mapped: set[str]) -> list[LearnedWord]:
    """Flags of the given first words that downstream mostly removed: there is no single target for them."""
    gone = Counter(match.group() for text in changes.dropped for match in FLAG.finditer(text))
    kept = Counter(match.group() for text in changes.kept for match in FLAG.finditer(text))
    for (a, _), count in changes.whole.items():
        kept[a] += count
    return [
        LearnedWord(flag, None, Support(count, count + kept[flag]))
        for flag, count in sorted(gone.items(), key=lambda item: (-item[1], item[0]))
        if flag not in mapped and flag[2:].partition("-")[0] in prefixes and count >= 3 and count >= 4 * kept[flag]
    ]


def _terms(changes: Changes, vocabulary: Vocabulary) -> list[LearnedWord]:
    """Literal texts that were replaced nearly everywhere, and that no family or flag explains."""
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    for (a, b), count in changes.whole.items():
        source, target = shorten(a, b)
        if re.search(r"[A-Za-z]{3}", source) and not a.startswith("-") and target and re.search(r"[./_-]", source):
            votes[source][target] += count
    flags = {learned.source[2:].replace("-", "_") for learned in vocabulary.flags}
    kept = "\n".join(changes.kept)
    learned = []
    for source, targets in sorted(votes.items()):
        target, count = max(targets.items(), key=lambda item: (item[1], item[0]))
        total = sum(targets.values()) + kept.count(source)
        if count >= MIN_TERM and count >= 0.8 * total and not any(flag in source for flag in flags):
            learned.append(LearnedWord(source, target, Support(count, total)))
    return sorted(learned, key=lambda one: (-one.support.seen, one.source))
