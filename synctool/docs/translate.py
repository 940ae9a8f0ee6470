"""A page in downstream's words, and carried over section by section into the page that downstream has. Pure.

In code blocks and addresses only flags are replaced. A section is replaced only while nobody here edited it: the record holds the hash of
upstream's source and of the result, so what changed on which side is known without a merge.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from synctool.docs.page import Page, Section, slugs
from synctool.policy.model import Flag
from synctool.translate.matcher import Replacement
from synctool.translate.translator import Translator

KEEP = re.compile(r"^\s*(?:<!--\s*vime-sync:\s*keep\b.*-->|\.\. vime-sync: keep\b.*)\s*$", re.MULTILINE)

#: Section key -> (hash of upstream's source, hash of the result).
Known = Mapping[str, tuple[str, str]]


class State(StrEnum):
    """What happened to one section."""

    SAME = "same"
    NEW = "new"
    UPDATED = "updated"
    REMOVED = "removed"
    KEPT = "kept"
    OURS = "ours"
    DELETED_HERE = "deleted here"
    EDITED = "edited on both sides"
    UNRECORDED = "differs and was never recorded"
    REMOVED_THERE = "removed upstream, edited here"


#: States in which the section here stays, and a person has to look.
ATTENTION = frozenset({State.EDITED, State.UNRECORDED, State.REMOVED_THERE})


@dataclass(frozen=True, slots=True)
class Outcome:
    """One section of the result: its key and title, its line in downstream's page before (0: it had none), and the translation of upstream's section."""

    key: str
    title: str
    line: int
    state: State
    translated: str = ""


@dataclass(frozen=True)
class Carried:
    """A page after the carry-over, what happened to each section, and the record to keep."""

    text: str
    outcomes: tuple[Outcome, ...]
    record: dict[str, tuple[str, str]]


def replacements(translator: Translator, page: Page, downstream_path: str) -> list[Replacement]:
    """What is to be replaced in an upstream page: all words in prose, flags alone in code blocks and addresses."""
    if translator.skips(downstream_path) is not None:
        return []
    opaque = page.opaque
    found = translator.trace(page.text, downstream_path)
    return [
        one
        for one in found
        if not any(start < one.end and one.start < end for start, end in opaque) or _is_flag(page.text, one)
    ]


def translate_page(translator: Translator, page: Page, downstream_path: str) -> str:
    """A whole upstream page in downstream's words."""
    return _apply(page.text, 0, len(page.text), replacements(translator, page, downstream_path))


def carry(
    translator: Translator, source: Page, downstream_path: str, ours: Page | None, known: Known, *, accept: bool = False
) -> Carried:
    """Bring an upstream page's changes into downstream's page.

    Args:
        translator: the policy's words.
        source: upstream's page.
        downstream_path: where it lands.
        ours: downstream's page; None when it has none.
        known: the record of the last time, by section key.
        accept: take downstream's sections as they stand for translations of upstream's as it stands, where a person has to look.
    """
    theirs = _sections(translator, source, downstream_path)
    mine = _keyed(ours) if ours is not None else {}
    result = {key: section.text for key, section in mine.items()}
    record: dict[str, tuple[str, str]] = {}
    outcomes: list[Outcome] = []
    before: str | None = None
    for key, (section, text) in theirs.items():
        here = mine.get(key)
        state = _state(section, text, here, known.get(key), fresh=ours is None)
        if state in ATTENTION and accept and here is not None:
            record[key] = (section.digest, here.digest)
            state = State.SAME
        elif state in (State.NEW, State.UPDATED, State.SAME):
            written = text if state is not State.SAME or here is None else here.text
            result = _put(result, key, written, before)
            record[key] = (section.digest, _digest(written))
        elif key in known:
            record[key] = known[key]
        outcomes.append(Outcome(key, section.title, here.line if here else 0, state, text))
        before = key if key in result else before
    for key, here in mine.items():
        if key in theirs:
            continue
        state = State.OURS
        if key in known:
            untouched = here.digest == known[key][1] and not KEEP.search(here.text)
            state = State.REMOVED if untouched else State.OURS if accept else State.REMOVED_THERE
            if state is State.REMOVED:
                del result[key]
            elif state is State.REMOVED_THERE:
                record[key] = known[key]
        outcomes.append(Outcome(key, here.title, here.line, state))
    return Carried(_join(result), tuple(outcomes), record)


def _state(section: Section, text: str, here: Section | None, known: tuple[str, str] | None, *, fresh: bool) -> State:
    if here is None:
        return State.NEW if known is None or fresh else State.DELETED_HERE
    if KEEP.search(here.text):
        return State.KEPT
    if here.digest == _digest(text):
        return State.SAME
    if known is None:
        return State.UNRECORDED
    if known[0] == section.digest:
        return State.SAME
    return State.UPDATED if known[1] == here.digest else State.EDITED


def _sections(translator: Translator, page: Page, path: str) -> dict[str, tuple[Section, str]]:
    """Upstream's sections with their translations, by the slugs of the translated titles."""
    found = replacements(translator, page, path)
    pairs = []
    start = 0
    for section in page.sections:
        end = start + len(section.text)
        pairs.append((section, _apply(page.text, start, end, found)))
        start = end
    keys = _keys([translator.text(section.title, path) for section, _ in pairs])
    return dict(zip(keys, pairs, strict=True))


def _keyed(page: Page) -> dict[str, Section]:
    return dict(zip(_keys([section.title for section in page.sections]), page.sections, strict=True))


def _keys(titles: list[str]) -> list[str]:
    """Slugs, made distinct also where a title slugs to another's numbered slug."""
    keys: list[str] = []
    for slug in slugs(titles):
        while slug in keys:
            slug += "'"
        keys.append(slug)
    return keys


def _digest(text: str) -> str:
    return Section(0, 0, "", text).digest


def _put(result: dict[str, str], key: str, text: str, before: str | None) -> dict[str, str]:
    """Replace a section, or insert it behind the one that stands before it upstream."""
    if key in result:
        return {**result, key: text}
    items = list(result.items())
    place = next((number + 1 for number, (name, _) in enumerate(items) if name == before), 0)
    return dict([*items[:place], (key, text), *items[place:]])


def _join(sections: Mapping[str, str]) -> str:
    """The sections as one text. One that ended the file without a line feed is closed where another follows now."""
    texts = list(sections.values())
    for place, text in enumerate(texts[:-1]):
        if not text.endswith("\n"):
            texts[place] = text + "\n\n"
    return "".join(texts)


def _is_flag(text: str, found: Replacement) -> bool:
    """Whether a replacement is a flag's, or lies in a word that begins with dashes."""
    if isinstance(found.rule, Flag):
        return True
    start = found.start
    while start and (text[start - 1].isalnum() or text[start - 1] in "-_"):
        start -= 1
    return text.startswith("--", start)


def _apply(text: str, start: int, end: int, found: list[Replacement]) -> str:
    parts = []
    at = start
    for one in found:
        if start <= one.start < end:
            parts += [text[at : one.start], one.after]
            at = one.end
    return "".join([*parts, text[at:end]])
