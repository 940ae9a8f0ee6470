"""Markdown pages, by the line maps of markdown-it's tokens: a fence in a list or a quotation is found as CommonMark finds it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from synctool.docs.page import Heading, Link, Page, Span, line_span, line_starts, slugs

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

_LABEL = re.compile(r"^\(([\w.: -]+)\)=\s*$", re.MULTILINE)
_ROLE = re.compile(r"\{(doc|ref)\}`(?:[^`<]*<)?([^`>]+)>?`")
_ENTRY = re.compile(r"(?:.*<)?([^<>]+?)>?$")


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").enable("table")


@cache
def _outline_parser() -> MarkdownIt:
    """Blocks alone: what is inside of paragraphs costs most of the time."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable("table")
    parser.core.ruler.enableOnly(["normalize", "block"])
    return parser


@lru_cache(maxsize=1024)
def headings(text: str) -> tuple[Heading, ...]:
    """The headings of a Markdown text, as ``parse`` finds them, in a fraction of the time."""
    return tuple(_headings(_outline_parser().parse(_without_front_matter(text))))


def _headings(tokens: list[Token]) -> Iterator[Heading]:
    for place, token in enumerate(tokens):
        if token.type == "heading_open" and token.level == 0 and token.map:
            yield Heading(token.map[0] + 1, int(token.tag[1]), tokens[place + 1].content.replace("\n", " "))


def parse(path: str, text: str) -> Page:
    """The page of a Markdown text."""
    starts = line_starts(text)
    code: list[Span] = []
    links: list[Link] = []
    contents: list[Link] = []
    tokens = _parser().parse(_without_front_matter(text))
    found = tuple(_headings(tokens))
    for token in tokens:
        if token.type in ("fence", "code_block") and token.map:
            if token.info.strip().startswith("{toctree}"):
                contents += _entries(token)
            elif not re.match(r"\{(note|warning|tip|important|admonition|seealso)\}", token.info.strip()):
                code.append(line_span(starts, token.map[0], token.map[1]))
        elif token.type == "inline" and token.map:
            links += _links(token, token.map[0] + 1)
    anchors = {*slugs(head.title for head in found), *_LABEL.findall(text)}
    return Page(path, text, found, tuple(code), tuple(links), frozenset(anchors), tuple(contents))


def _links(token: Token, line: int) -> list[Link]:
    found = []
    for child in token.children or ():
        target = child.attrGet("href" if child.type == "link_open" else "src")
        if child.type in ("link_open", "image") and isinstance(target, str):
            found.append(Link(line, target))
        elif child.type in ("softbreak", "hardbreak"):
            line += 1
    for match in _ROLE.finditer(token.content):
        at = (token.map or [0])[0] + 1 + token.content.count("\n", 0, match.start())
        found.append(Link(at, match[2], label=match[1] == "ref"))
    return found


def _entries(token: Token) -> list[Link]:
    first = (token.map or [0])[0] + 2
    return [
        Link(first + number, match[1])
        for number, line in enumerate(token.content.split("\n"))
        if line.strip() and not line.lstrip().startswith(":") and (match := _ENTRY.match(line.strip()))
    ]


def _without_front_matter(text: str) -> str:
    """The text with a YAML front matter blanked, so that lines keep their numbers."""
    match = re.match(r"---\n.*?\n---\n", text, re.DOTALL)
    return "\n" * match[0].count("\n") + text[match.end() :] if match else text
