"""The training commands of a script, told from its text: assignments, arrays, loops and tests are followed, and no command is run.

Where a test depends on the machine, the branch that goes on is taken: not one that only ends the script.
"""

from __future__ import annotations

import contextlib
import fnmatch
import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vime.migrate.expand import Scope, arithmetic, fields, is_open, text
from vime.migrate.shell import parse, words

if TYPE_CHECKING:
    from tree_sitter import Node

_LOOPS = 10_000
_PROGRAMS = ("train.py", "train_async.py")
Reader = Callable[[str], str | None]


@dataclass
class Script:
    """What was found. `commands`: the words after ``train.py`` of each call. `arrays`: all arrays at the end. `unread`: sourced files that are not there."""

    commands: list[list[str]] = field(default_factory=list)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)


def read_script(source: str, path: str, read: Reader) -> Script:
    """Follow the script `source`, which is at `path`. `read` gives the text of a sourced file, or None."""
    walker = _Walker(path, read)
    with contextlib.suppress(_Stop, _Return):
        walker.visit(parse(source))
    values = walker.scope.values.items()
    walker.script.arrays = {name: value for name, value in values if isinstance(value, list) and name != "BASH_SOURCE"}
    return walker.script


class _Stop(Exception):
    """``exit`` was reached."""


class _Return(Exception):
    """``return`` was reached: a function or a sourced file ends."""


class _Walker:
    def __init__(self, path: str, read: Reader) -> None:
        self.read = read
        self.scope = Scope({"BASH_SOURCE": [path], "0": path}, self._output)
        self.script = Script()
        self.functions: dict[str, Node] = {}

    def visit(self, node: Node) -> None:
        """Do what a statement does to variables, and note training commands."""
        handler = getattr(self, f"_{node.type}", None)
        if handler is not None:
            handler(node)
            return
        for child in node.named_children:
            self.visit(child)

    def _variable_assignment(self, node: Node) -> None:
        target, value = node.named_children[0], node.child_by_field_name("value")
        name = _raw(target)
        adds = any(child.type == "+=" for child in node.children)
        if value is not None and value.type == "array":
            items = [one for word in words(value) for one in fields(word.raw, self.scope)]
            before = self.scope.values.get(name, [])
            self.scope.values[name] = [*([before] if isinstance(before, str) else before), *items] if adds else items
            return
        new = text(_raw(value), self.scope) if value is not None else ""
        self.scope.values[name] = (self.scope.text(name) or "") + new if adds else new

    def _function_definition(self, node: Node) -> None:
        self.functions[_raw(node.named_children[0])] = node.named_children[-1]

    def _command(self, node: Node) -> None:
        for child in node.children:
            if child.type == "variable_assignment":
                self.visit(child)
        argv = [one for word in words(node) for one in fields(word.raw, self.scope)]
        if not argv:
            return
        match argv[0]:
            case "exit":
                raise _Stop
            case "return":
                raise _Return
            case "source" | ".":
                self._source(argv[1] if len(argv) > 1 else "")
            case "printf" if argv[1:2] == ["-v"] and len(argv) > 3:
                self.scope.values[argv[2]] = _printf(argv[3], argv[4:])
            case "unset":
                for name in argv[1:]:
                    self.scope.values.pop(name, None)
            case name if name in self.functions:
                with contextlib.suppress(_Return):
                    self.visit(self.functions[name])
            case _:
                found = [i for i, one in enumerate(argv) if posixpath.basename(one) in _PROGRAMS]
                if found:
                    self.script.commands.append(argv[found[0] + 1 :])

    def _source(self, path: str) -> None:
        source = None if is_open(path) else self.read(path)
        if source is None:
            self.script.unread.append(path)
            return
        before = self.scope.values["BASH_SOURCE"]
        self.scope.values["BASH_SOURCE"] = [path, *before]
        with contextlib.suppress(_Return):
            self.visit(parse(source))
        self.scope.values["BASH_SOURCE"] = before

    def _if_statement(self, node: Node) -> None:
        """Clauses are (condition, body); the first that holds is followed."""
        clauses = [node, *(child for child in node.children if child.type in ("elif_clause", "else_clause"))]
        unknown: Node | None = None
        for clause in clauses:
            holds = True if clause.type == "else_clause" else self._holds(clause.named_children[0])
            if holds:
                self._body(clause)
                return
            if holds is None and unknown is None and not _ends(clause):
                unknown = clause
        if unknown is not None:
            self._body(unknown)

    def _body(self, clause: Node) -> None:
        skip = 0 if clause.type == "else_clause" else 1
        for child in clause.named_children[skip:]:
            if child.type not in ("elif_clause", "else_clause"):
                self.visit(child)

    def _c_style_for_statement(self, node: Node) -> None:
        head = [child for child in node.children if child.type not in ("for", "((", "))", "do_group", ";")]
        parts = " ".join(_raw(child) for child in head)
        match = re.fullmatch(r"(\w+)\s*=\s*(\S+) (.+) (?:\1\s*\+\+|\+\+\s*\1|\1\s*\+=\s*(\d+))", parts)
        start = arithmetic(match[2], self.scope) if match else None
        if match is None or start is None:
            return
        value = start
        for _ in range(_LOOPS):
            self.scope.values[match[1]] = str(value)
            if not arithmetic(match[3], self.scope):
                return
            self.visit(node.named_children[-1])
            value += int(match[4] or 1)

    def _for_statement(self, node: Node) -> None:
        name = _raw(node.named_children[0])
        items = [child for child in node.named_children[1:] if child.type != "do_group"]
        values = [one for item in items for one in fields(_raw(item), self.scope)]
        for value in values[:_LOOPS]:
            if not is_open(value):
                self.scope.values[name] = value
                self.visit(node.named_children[-1])

    def _while_statement(self, node: Node) -> None:
        """Waits and retries: how often is not told by the text."""

    def _list(self, node: Node) -> None:
        """a && b, a || b: the second part only where the first tells."""
        left, right = node.named_children[0], node.named_children[-1]
        holds = self._holds(left)
        if holds is None or left.type == "command":
            self.visit(left)
        kind = node.children[1].type
        if (kind == "&&" and holds is not False) or (kind == "||" and holds is False):
            self.visit(right)

    def _holds(self, node: Node) -> bool | None:
        """Whether a condition is true; None when only a run can tell."""
        if node.type == "negated_command":
            inner = self._holds(node.named_children[0])
            return None if inner is None else not inner
        if node.type == "list":
            left, right = self._holds(node.named_children[0]), self._holds(node.named_children[-1])
            if node.children[1].type == "&&":
                return False if False in (left, right) else None if None in (left, right) else True
            return True if True in (left, right) else None if None in (left, right) else False
        source = _raw(node)
        if source.startswith("(("):
            number = arithmetic(source[2:-2], self.scope)
            return None if number is None else bool(number)
        if node.type != "test_command":
            return None
        return self._test([fields(word, self.scope) for word in _test_words(node)])

    def _test(self, parts: list[list[str]]) -> bool | None:
        negated = bool(parts) and parts[0] == ["!"]
        items = [" ".join(part) for part in parts[negated:]]
        if any(is_open(item) for item in items):
            return None
        match items:
            case ["-z", value]:
                # An environment variable that the text does not set may well be set.
                holds = not value
                if holds:
                    return None
            case ["-n", value]:
                holds = bool(value)
                if not holds:
                    return None
            case [left, "=" | "==", right]:
                holds = fnmatch.fnmatchcase(left, right)
            case [left, "!=", right]:
                holds = not fnmatch.fnmatchcase(left, right)
            case [left, "-gt" | "-lt" | "-ge" | "-le" | "-eq" | "-ne" as kind, right] if _whole(left) and _whole(right):
                a, b = int(left), int(right)
                holds = {"-gt": a > b, "-lt": a < b, "-ge": a >= b, "-le": a <= b, "-eq": a == b, "-ne": a != b}[kind]
            case _:
                return None
        return holds != negated

    def _output(self, command: str) -> str | None:
        """What a command prints, for those that are pure."""
        tree = parse(command)
        if re.fullmatch(r"\s*cd\s[^;|]*&&\s*pwd\s*", command):
            first = next(iter(tree.named_children), None)
            return self._pure(_first_command(first)) if first is not None else None
        statements = tree.named_children
        for child in statements[:-1]:
            self.visit(child)
        if not statements or statements[-1].type != "command":
            return None
        return self._pure(statements[-1])

    def _pure(self, node: Node | None) -> str | None:
        if node is None:
            return None
        argv = [one for word in words(node) for one in fields(word.raw, self.scope) if one != "--"]
        if any(is_open(one) for one in argv):
            return None
        match argv:
            case ["seq", *numbers] if 1 <= len(numbers) <= 3 and all(map(_whole, numbers)):
                first, step, last = _seq([int(one) for one in numbers])
                return "\n".join(map(str, range(first, last + (1 if step > 0 else -1), step))) if step else None
            case ["dirname", path]:
                return posixpath.dirname(path) or "."
            case ["basename", path]:
                return posixpath.basename(path)
            case ["cd", path]:
                return path
            case ["mktemp", template]:
                return template  # a name like it
            case ["echo", *rest]:
                return " ".join(rest)
        return None


def _raw(node: Node) -> str:
    return (node.text or b"").decode()


def _first_command(node: Node) -> Node | None:
    while node.type not in ("command",):
        if not node.named_children:
            return None
        node = node.named_children[0]
    return node


def _ends(clause: Node) -> bool:
    ends = ("exit", "return")
    return any(child.type == "command" and _raw(child).split()[0] in ends for child in clause.named_children)


def _test_words(node: Node) -> list[str]:
    """The words between the brackets of a test, which the grammar makes an expression of."""
    inside = re.sub(r"^\[\[?|\]?\]$", "", _raw(node)).strip()
    return re.findall(r'(?:"(?:\\.|[^"\\])*"|\'[^\']*\'|\$\{[^}]*\}|\S)+', inside)


def _whole(value: str) -> bool:
    return re.fullmatch(r"-?\d+", value) is not None


def _seq(numbers: list[int]) -> tuple[int, int, int]:
    match numbers:
        case [last]:
            return 1, 1, last
        case [first, last]:
            return first, 1, last
    return numbers[0], numbers[1], numbers[2]


def _printf(form: str, values: list[str]) -> str:
    """%s and %d are enough for launch scripts."""
    items = iter(values)
    return re.sub(r"%[sd]", lambda _: next(items, ""), form)
