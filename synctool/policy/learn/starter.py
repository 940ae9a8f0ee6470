"""Writes the starter ``vime-sync.toml``: what was learned, each rule with a comment that says what it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from synctool.policy.learn.ownership import Ownership
from synctool.policy.learn.pairs import Pairing
from synctool.policy.learn.words import LearnedFamily, Vocabulary


@dataclass(frozen=True)
class Names:
    """What is known of the two projects besides their content."""

    upstream: str
    downstream: str
    upstream_url: str | None
    downstream_url: str | None
    upstream_branch: str
    downstream_branch: str
    baseline: str


def render_starter(names: Names, pairing: Pairing, vocabulary: Vocabulary, ownership: Ownership) -> str:
    """The text of the policy file. It loads as it is."""
    lines = [
        "# Written by 'vime-sync init'. Read every rule before you rely on it: a comment says what each one rests on.",
        "# 'vime-sync policy check' finds rules that do nothing; 'vime-sync explain PATH|WORD|#PR' says which rule decides.",
        "schema = 1",
        "",
        "[upstream]",
        f"name = {_text(names.upstream)}",
        *_url(names.upstream_url),
        f"branch = {_text(names.upstream_branch)}",
        f"baseline = {_text(names.baseline)}",
        "",
        "[downstream]",
        f"name = {_text(names.downstream)}",
        *_url(names.downstream_url),
        f"branch = {_text(names.downstream_branch)}",
        "",
        "[translate]",
        'skip = ["*.patch"] # a translated patch no longer applies',
        "",
        f"# Words. With these families {vocabulary.equal.seen} of {vocabulary.equal.total} lines of the paired files equal the translation.",
    ]
    for learned in vocabulary.families:
        lines += ["", *_family(learned)]
    if vocabulary.terms:
        lines += ["", "# Texts that no family explains. Pull request addresses are protected below."]
    for term in vocabulary.terms:
        lines += ["", f"[[term]] # {term.support}", f"from = {_text(term.source)}", f"to = {_text(term.target or '')}"]
    mapped = [flag for flag in vocabulary.flags if flag.target is not None]
    unmapped = [flag for flag in vocabulary.flags if flag.target is None]
    if vocabulary.flags:
        lines += ["", "# Flags: the dashed form and the attribute follow from one entry."]
    for flag in mapped:
        lines += ["", f"[[flag]] # {flag.support}", f"from = {_text(flag.source)}", f"to = {_text(flag.target or '')}"]
    for flag in unmapped:
        why = f"downstream removed it in {flag.support.seen} of {flag.support.total} places"
        lines += ["", "[[flag]]", f"from = {_text(flag.source)}", f"report = {_text(why)}"]
    lines += ["", "# Text that is never translated.", ""]
    lines += ["[[protect]]", 'name = "pull requests, issues and commits"']
    lines += ["regex = '''https?://[\\w.-]+/[\\w.-]+/[\\w.-]+/(?:pull|issues|commit)/\\w+'''"]
    lines += ["", "[[protect]]", 'name = "licence texts"', "regex = '''(?s)\\A.+\\Z'''", 'only = ["LICENSE*"]']
    if pairing.moves:
        lines += ["", "# Moves that no word explains, found by content."]
    for old, (new, similarity) in sorted(pairing.moves.items()):
        lines += ["", f"[[path]] # {similarity} % alike", f"from = {_text(old)}", f"to = {_text(new)}"]
    lines += ["", "# Owners. The last rule that matches wins; what no rule names is mirrored."]
    lines += _owner("native", ownership.native, "only here: upstream never had it")
    lines += _owner("exclude", ownership.deleted, "deleted here; once deleted stays deleted")
    if ownership.never_ported:
        lines += [
            "",
            "# Never ported, so filled in when upstream changes them. Take the comment signs away to leave them out.",
        ]
        lines += _owner("exclude", ownership.never_ported, "never ported", commented=True)
    if ownership.rewritten:
        lines += [
            "",
            "# Next to nothing of upstream's text is left. If they were rewritten, take the comment signs away.",
        ]
        lines += _owner("port", ownership.rewritten, "rewritten here", commented=True)
    return "\n".join(lines) + "\n"


def _family(learned: LearnedFamily) -> list[str]:
    family = learned.family
    lines = [f"[[family]] # {learned.support}"]
    lines += [f"#   {word}: {support}" for word, support in learned.spellings.items()]
    lines += [f"from = {_text(family.from_)}", f"to = {_text(family.to)}"]
    if family.identifier is not None:
        lines.append(f"identifier = {_text(family.identifier)}")
    return lines


def _owner(kind: str, globs: Sequence[tuple[str, int]], reason: str, *, commented: bool = False) -> list[str]:
    if not globs:
        return []
    sign = "# " if commented else ""
    lines = ["", f"{sign}[[owner]]", f"{sign}paths = ["]
    lines += [f"{sign}    {_text(glob)}," + (f" # {count} files" if count > 1 else "") for glob, count in globs]
    return [*lines, f"{sign}]", f"{sign}owner = {_text(kind)}", f"{sign}reason = {_text(reason)}"]


def _url(url: str | None) -> list[str]:
    return [f"url = {_text(url)}"] if url else ['# url = "https://..."']


def _text(value: str) -> str:
    """A TOML basic string."""
    import json

    # JSON escapes are TOML escapes, but for a lone surrogate, which no TOML text can hold.
    return json.dumps(value.encode("utf-8", "replace").decode(), ensure_ascii=False).replace("\x7f", "\\u007f")
