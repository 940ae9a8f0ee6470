"""reStructuredText pages, line by line: docutils would run the directives of a page that is not ours."""

from __future__ import annotations

import re

from synctool.docs.page import Heading, Link, Page, Span, line_span, line_starts, slugs, split_lines

_RULE = re.compile(r"([!-/:-@\[-`{-~])\1{2,}\s*$")
_DIRECTIVE = re.compile(r"(\s*)\.\. ([\w-]+)::")
_ROLE = re.compile(r":(doc|ref):`(?:[^`<]*<)?([^`>]+)>?`")
_LABEL = re.compile(r"^\s*\.\. _([^:`]+):\s*$", re.MULTILINE)
_HREF = re.compile(r"`[^`<]*<([^`>]+)>`_")
_ENTRY = re.compile(r"(?:.*<)?([^<>]+?)>?$")
_CODE = frozenset({"code", "code-block", "sourcecode", "highlight", "literalinclude", "parsed-literal", "math", "raw"})


def parse(path: str, text: str) -> Page:
    """The page of a reStructuredText."""
    lines = [line.rstrip("\r\n") for line in split_lines(text)]
    starts = line_starts(text)
    code: list[Span] = []
    contents: list[Link] = []
    links: list[Link] = []
    blocks: set[int] = set()
    for number, line in enumerate(lines):
        if number in blocks:
            continue
        directive = _DIRECTIVE.match(line)
        name = directive[2] if directive else None
        if name in _CODE or name == "toctree" or (name is None and line.rstrip().endswith("::")):
            end = _block_end(lines, number)
            blocks.update(range(number + 1, end))
            if name == "toctree":
                contents += _entries(lines, number + 1, end)
            else:
                code.append(line_span(starts, number + 1, end))
        for match in _ROLE.finditer(line):
            links.append(Link(number + 1, match[2], label=match[1] == "ref"))
        links += [Link(number + 1, match[1]) for match in _HREF.finditer(line)]
    headings = _headings(lines, blocks)
    anchors = frozenset({*slugs(head.title for head in headings), *_LABEL.findall(text)})
    return Page(path, text, tuple(headings), tuple(code), tuple(links), anchors, tuple(contents))


def _block_end(lines: list[str], opener: int) -> int:
    """The line after the indented block below a line."""
    indent = len(lines[opener]) - len(lines[opener].lstrip())
    end = last = opener + 1
    while end < len(lines):
        line = lines[end]
        if line.strip():
            if len(line) - len(line.lstrip()) <= indent:
                break
            last = end + 1
        end += 1
    return last


def _entries(lines: list[str], first: int, end: int) -> list[Link]:
    return [
        Link(number + 1, match[1])
        for number in range(first, end)
        if (entry := lines[number].strip()) and not entry.startswith(":") and (match := _ENTRY.match(entry))
    ]


def _headings(lines: list[str], blocks: set[int]) -> list[Heading]:
    """Titles with a rule below, and perhaps one above; the order in which styles appear gives their level."""
    styles: list[tuple[str, bool]] = []
    found = []
    for number in range(1, len(lines)):
        below, title = _RULE.match(lines[number]), lines[number - 1]
        if not below or number in blocks or not title.strip() or _RULE.match(title) or title.startswith(".. "):
            continue
        above = number >= 2 and lines[number - 2].rstrip() == lines[number].rstrip()
        if len(lines[number].rstrip()) < len(title.rstrip()) and title.isascii():
            continue
        style = (below[1], above)
        if style not in styles:
            styles.append(style)
        found.append(Heading(number - 1 if above else number, styles.index(style) + 1, title.strip()))
    return found
