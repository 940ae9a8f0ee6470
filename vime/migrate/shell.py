"""Bash text as a tree, and where its words are. Nothing is run or expanded here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vime.errors import MachineError

if TYPE_CHECKING:
    from tree_sitter import Node


def parse(source: str) -> Node:
    """The syntax tree of a script. Raises MachineError without the parser's packages."""
    try:
        import tree_sitter_bash
        from tree_sitter import Language, Parser
    except ImportError as error:
        raise MachineError(
            f"reading shell scripts needs {error.name}", hint="pip install tree-sitter tree-sitter-bash"
        ) from error
    return Parser(Language(tree_sitter_bash.language())).parse(source.encode()).root_node


@dataclass(frozen=True)
class Span:
    """A word: its bytes [start, end) of the source and its text, quotes and all."""

    start: int
    end: int
    raw: str


_NO_WORDS = {
    "(",
    ")",
    "comment",
    "file_redirect",
    "heredoc_redirect",
    "herestring_redirect",
    "variable_assignment",
    "\n",
}


def words(node: Node) -> list[Span]:
    """The words of a command or an array. The grammar cuts words such as ``[0]*$N`` in two: what touches is one word."""
    found: list[Span] = []
    for child in node.children:
        if child.type in _NO_WORDS:
            continue
        raw = (child.text or b"").decode()
        if found and found[-1].end == child.start_byte:
            found[-1] = Span(found[-1].start, child.end_byte, found[-1].raw + raw)
        else:
            found.append(Span(child.start_byte, child.end_byte, raw))
    return found


def walk(node: Node, kinds: tuple[str, ...]) -> Iterator[Node]:
    """All nodes of these kinds, in the order of the text."""
    if node.type in kinds:
        yield node
    for child in node.children:
        yield from walk(child, kinds)


def closing(text: str, start: int, opening: str, end: str) -> int:
    """The index after the bracket that closes the one before `start`; quotes hide brackets. The end of the text when none does."""
    depth, at = 1, start
    while at < len(text):
        character = text[at]
        if character == "\\":
            at += 1
        elif character in "'\"":
            at = quote_end(text, at)
            continue
        elif character == opening:
            depth += 1
        elif character == end:
            depth -= 1
            if not depth:
                return at + 1
        at += 1
    return at


def quote_end(text: str, start: int) -> int:
    """The index after the quote that opens at `start`."""
    quote, at = text[start], start + 1
    while at < len(text) and text[at] != quote:
        if quote == '"' and text[at] == "\\":
            at += 1
        elif quote == '"' and text.startswith("$(", at):
            at = closing(text, at + 2, "(", ")")
            continue
        elif quote == '"' and text.startswith("${", at):
            at = closing(text, at + 2, "{", "}")
            continue
        at += 1
    return at + 1
