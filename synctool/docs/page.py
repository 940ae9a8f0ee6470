"""A page of documentation as a value: sections with the hash of their source, spans that are not prose, links and the names that links may use."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: ``text[start:end]``.
Span = tuple[int, int]

#: An address outside of the repository, up to what can't belong to it in prose.
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s<>\"'`|)\]]+")


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading on a line (counted from 1), with its level (from 1)."""

    line: int
    level: int
    title: str


@dataclass(frozen=True, slots=True)
class Link:
    """A reference to another page, a file or a name: ``target`` as it is written, and whether it names a label rather than a path."""

    line: int
    target: str
    label: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands below it up to the next heading. The text before the first heading is a section of level 0."""

    line: int
    level: int
    title: str
    text: str

    @property
    def digest(self) -> str:
        """A hash of the source, blank space at the ends of lines left out: what staleness is judged by."""
        lines = "\n".join(line.rstrip() for line in self.text.strip().split("\n"))
        return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()[:16]


@dataclass(frozen=True)
class Page:
    """A parsed page."""

    path: str
    text: str
    headings: tuple[Heading, ...]
    #: Code blocks: translated in their flags alone.
    code: tuple[Span, ...]
    links: tuple[Link, ...]
    #: Names that a link may point at: slugs of headings and explicit labels.
    anchors: frozenset[str]
    #: Entries of tables of contents.
    contents: tuple[Link, ...]

    @property
    def sections(self) -> tuple[Section, ...]:
        """The page cut at its headings. Joined, their texts are the page."""
        lines = split_lines(self.text)
        cuts = [(1, 0, ""), *((head.line, head.level, head.title) for head in self.headings)]
        ends = [cut[0] for cut in cuts[1:]] + [len(lines) + 1]
        found = [
            Section(line, level, title, "".join(lines[line - 1 : end - 1]))
            for (line, level, title), end in zip(cuts, ends, strict=True)
        ]
        return tuple(section for section in found if section.text)

    @property
    def opaque(self) -> tuple[Span, ...]:
        """Code blocks and addresses."""
        return tuple(sorted([*self.code, *(match.span() for match in URL.finditer(self.text))]))


def parse(path: str, text: str) -> Page:
    """The page of a file; by its name it is reStructuredText (``.rst``) or Markdown."""
    from synctool.docs import markdown, rest

    return rest.parse(path, text) if path.endswith(".rst") else markdown.parse(path, text)


def headings(path: str, text: str) -> tuple[Heading, ...]:
    """The headings of ``parse(path, text)``; for who needs no more."""
    from synctool.docs import markdown, rest

    return rest.parse(path, text).headings if path.endswith(".rst") else markdown.headings(text)


def is_page(path: str) -> bool:
    """Whether a file is a page."""
    return path.endswith((".md", ".rst"))


def slugs(titles: Iterable[str]) -> list[str]:
    """The names of headings in links, as GitHub and MyST make them: a second heading of one name gets ``-1``."""
    seen: dict[str, int] = {}
    found = []
    for title in titles:
        slug = re.sub(r"[^\w\- ]", "", re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", title).strip().lower())
        slug = slug.replace(" ", "-")
        count = seen.get(slug, 0)
        seen[slug] = count + 1
        found.append(f"{slug}-{count}" if count else slug)
    return found


def line_span(starts: Sequence[int], first: int, end: int) -> Span:
    """The span of the lines ``first`` (from 0) up to ``end``, given where each line starts and where the text ends."""
    return starts[min(first, len(starts) - 1)], starts[min(end, len(starts) - 1)]


def split_lines(text: str) -> list[str]:
    """The lines with their line feeds. No other character ends a line: a form feed in a page must not shift what follows."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def line_starts(text: str) -> list[int]:
    """Where each line starts, and the end of the text."""
    starts = [0]
    for line in split_lines(text):
        starts.append(starts[-1] + len(line))
    return starts
