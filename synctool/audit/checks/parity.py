"""English and Chinese documentation in step, section by section."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import SequenceMatcher, get_close_matches

from synctool.audit.context import Audit
from synctool.audit.files import Files
from synctool.audit.finding import Hit, Rule, page
from synctool.docs.page import Heading, headings
from synctool.policy.model import OwnerKind

RULE = Rule("docs-parity", "the English and the Chinese page are out of step", "readers of one language miss a section")
LOST = Rule(
    "docs-lost-section",
    "a section of upstream's page is missing here",
    "it was lost in this sync or an earlier one, in all languages alike",
)
RULES = (RULE, LOST)

_LANGUAGES = ("en", "zh")


def _kind(heading: Heading) -> tuple[int, str]:
    """What a translation keeps: the level, and words of the title that no one translates (flags, and what stands in backticks)."""
    return heading.level, " ".join(re.findall(r"`[^`]+`|--[\w-]+", heading.title))


def _sections(files: Files, path: str) -> tuple[Heading, ...]:
    return headings(path, files.text(path) or "")


def check(audit: Audit) -> Iterator[Hit]:
    """Every page below a folder ``en`` against that below ``zh``, and mirrored pages against upstream's."""
    yield from _languages(audit)
    for path in audit.documents:
        if audit.through is not None and path in audit.through and audit.policy.owner_of(path).kind is OwnerKind.MIRROR:
            yield from _lost(audit, audit.through, path)


def _lost(audit: Audit, through: Files, path: str) -> Iterator[Hit]:
    """Sections of upstream's page whose heading is not here, and whose first words are not either: a section that was given another heading stays."""
    mine = _sections(audit.tree, path)
    theirs = _sections(through, path)
    titles = {section.title.casefold() for section in mine}
    here = " ".join((audit.tree.text(path) or "").split())
    for place, section in enumerate(theirs):
        if section.title.casefold() in titles or get_close_matches(
            section.title, [s.title for s in mine], n=1, cutoff=0.6
        ):
            continue
        end = theirs[place + 1].line - 1 if place + 1 < len(theirs) else None
        body = [line for line in through.lines(path)[section.line : end] if len(line.strip()) >= 20]
        if body and not any(" ".join(line.split()) in here for line in body):
            near = next((s for s in reversed(theirs[:place]) if s.title.casefold() in titles), None)
            line = next((s.line for s in mine if near is not None and s.title.casefold() == near.title.casefold()), 1)
            yield Hit(
                LOST,
                page(path),
                path,
                line,
                f"upstream's section '{section.title}' is not here",
                "put it back, translated, or say in the baseline why not",
            )


def _languages(audit: Audit) -> Iterator[Hit]:
    pages: dict[str, dict[str, str]] = {}
    for path in audit.documents:
        language = next((lang for lang in _LANGUAGES if f"/{lang}/" in f"/{path}"), None)
        if language is not None:
            pages.setdefault(page(path), {})[language] = path
    if not any(len(found) == 2 for found in pages.values()):
        return
    for subject, found in sorted(pages.items()):
        if _upstreams_own(audit, found):
            continue
        if len(found) < 2:
            (language, path), *_ = found.items()
            other = "zh" if language == "en" else "en"
            yield Hit(
                RULE,
                subject,
                path,
                0,
                f"the page has no counterpart in '{other}'",
                "translate it, or say in the baseline why not",
            )
        else:
            yield from _compare(audit, subject, found["en"], found["zh"])


def _upstreams_own(audit: Audit, found: dict[str, str]) -> bool:
    """Whether upstream's pages are out of step in the same way: then nothing was lost here."""
    if audit.through is None or not all(path in audit.through for path in found.values()):
        return False
    if len(found) < 2:
        (language, path), *_ = found.items()
        other = path.replace(f"{language}/", "zh/" if language == "en" else "en/", 1)
        return other not in audit.through
    mine = [[s.level for s in _sections(audit.tree, path)] for path in found.values()]
    theirs = [[s.level for s in _sections(audit.through, path)] for path in found.values()]
    return mine == theirs


def _compare(audit: Audit, subject: str, en: str, zh: str) -> Iterator[Hit]:
    left, right = _sections(audit.tree, en), _sections(audit.tree, zh)
    by_level = [section.level for section in left], [section.level for section in right]
    if by_level[0] == by_level[1]:
        return
    keys = [_kind(s) for s in left], [_kind(s) for s in right]
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, *keys, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        extra_left, extra_right = i2 - i1, j2 - j1
        if extra_left > extra_right:
            for section in left[i1 + extra_right : i2]:
                yield Hit(
                    RULE,
                    subject,
                    en,
                    section.line,
                    f"section '{section.title}' has no counterpart in {zh}",
                    "translate the section",
                )
        elif extra_right > extra_left:
            for section in right[j1 + extra_left : j2]:
                yield Hit(
                    RULE,
                    subject,
                    zh,
                    section.line,
                    f"section '{section.title}' has no counterpart in {en}",
                    "translate the section",
                )
