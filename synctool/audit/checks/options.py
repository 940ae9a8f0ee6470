"""Option strings that are registered twice on one parser."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from synctool.audit.checks.signatures import absolute
from synctool.audit.context import Audit
from synctool.audit.files import Function, PythonFile, dotted
from synctool.audit.finding import Hit, Rule

RULE = Rule(
    "duplicate-option",
    "an option is registered twice on one parser",
    "argparse stops with 'conflicting option string' at start-up",
)
RULES = (RULE,)


@dataclass(frozen=True)
class _Place:
    what: str
    path: str
    line: int


def check(audit: Audit) -> Iterator[Hit]:
    """Follows a parser from the function that makes it (or that nobody calls) through the functions that it is handed to.

    What ``XArgs.add_cli_args`` of another package registers is not seen; by convention its options begin with ``--x-``, so an option of that
    beginning on the same parser is told.
    """
    graph = _Graph(audit)
    for key in graph.roots():
        seen: dict[str, _Place] = {}
        for place in graph.registrations(key, frozenset()):
            first = seen.setdefault(place.what, place)
            if first is place:
                continue
            if (first.path, first.line) != (place.path, place.line):
                told = f"{place.what} is registered at {first.path}:{first.line} and again here"
                yield Hit(RULE, place.what, place.path, place.line, told, "register it once")
            else:
                told = f"{place.what} is registered by a function that runs twice"
                yield Hit(RULE, place.what, place.path, place.line, told, "call it once")
        yield from _foreign(audit, list(seen.values()))


def _foreign(audit: Audit, places: list[_Place]) -> Iterator[Hit]:
    for group in places:
        owner = re.fullmatch(r"all of (?:\w+\.)*(\w+?)Args\.add_cli_args", group.what)
        if owner is None or (audit.engine is not None and owner[1] in ("AsyncEngine", "Engine", "Frontend")):
            continue
        prefix = "--" + re.sub(r"(?<!^)(?=[A-Z])", "-", owner[1]).lower() + "-"
        for place in places:
            if place.what.startswith(prefix):
                told = f"{place.what} is registered here, and {group.what[7:]} ({group.path}:{group.line}) registers its own {prefix}* on the same parser"
                yield Hit(RULE, place.what, place.path, place.line, told, "leave out one of the two")


class _Graph:
    """Functions by (file, name), and what each does with a parser."""

    def __init__(self, audit: Audit) -> None:
        self.audit = audit
        self.functions: dict[tuple[str, str], tuple[PythonFile, Function]] = {}
        self.called: set[tuple[str, str]] = set()
        self.imports: dict[str, dict[str, tuple[str, str]]] = {}
        modules = [
            m
            for m in audit.modules()
            if b"add_argument" in audit.tree.data(m.path) or b"add_cli_args" in audit.tree.data(m.path)
        ]
        for module in modules:
            if not module.path.startswith("tests/"):
                for function in module.functions():
                    self.functions[(module.path, function.name)] = (module, function)
                self.imports[module.path] = dict(self._imported(module))
        for key in self.functions:
            self.called |= {target for _, target, _ in self._calls(key) if target != key}

    def _imported(self, module: PythonFile) -> Iterator[tuple[str, tuple[str, str]]]:
        for node in module.nodes(ast.ImportFrom):
            path = self.audit.own_module(absolute(module.path, node))
            for alias in node.names:
                if path is not None:
                    yield alias.asname or alias.name, (path, alias.name)

    def roots(self) -> list[tuple[str, str]]:
        """Functions from which a parser starts: nobody hands them one."""
        return [key for key in self.functions if key not in self.called]

    def _parsers(self, function: Function) -> set[str]:
        """Names in a function that hold a parser (or a group of one)."""
        names = {
            a.arg for a in (*function.args.args, *function.args.kwonlyargs) if "parser" in a.arg or a.arg == "group"
        }
        for node in _own_nodes(function):
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Call)
                and isinstance(node.targets[0], ast.Name)
            ):
                made = dotted(node.value.func)
                if made.endswith("ArgumentParser") or "add_argument_group" in made or "exclusive_group" in made:
                    names.add(node.targets[0].id)
        return names

    def _calls(self, key: tuple[str, str]) -> Iterator[tuple[ast.Call, tuple[str, str], str]]:
        """Calls that hand a parser on: (call, function in this tree or ('', dotted name), parser's name)."""
        module, function = self.functions[key]
        parsers = self._parsers(function)
        for node in _own_nodes(function):
            if not isinstance(node, ast.Call):
                continue
            handed = next((a.id for a in node.args if isinstance(a, ast.Name) and a.id in parsers), None)
            name = dotted(node.func)
            if handed is None or not name:
                continue
            if (module.path, name) in self.functions:
                yield node, (module.path, name), handed
            elif (known := self.imports[module.path].get(name)) in self.functions and known is not None:
                yield node, known, handed
            elif name.endswith("add_cli_args"):
                yield node, ("", name), handed

    def registrations(self, key: tuple[str, str], above: frozenset[tuple[str, str]]) -> Iterator[_Place]:
        """What a function registers, in the order of the text, that of functions it hands its parser to included."""
        if key in above:
            return
        module, function = self.functions[key]
        parsers = self._parsers(function)
        fresh = _fresh(function)
        calls = {
            id(call): target for call, target, handed in self._calls(key) if handed not in fresh or handed == min(fresh)
        }
        for node in sorted(
            (n for n in _own_nodes(function) if isinstance(n, ast.Call)), key=lambda n: (n.lineno, n.col_offset)
        ):
            if _conditional(module, function, node):
                continue
            target = calls.get(id(node))
            if target is not None:
                if target[0]:
                    yield from self.registrations(target, above | {key})
                else:
                    yield _Place(f"all of {target[1]}", module.path, node.lineno)
            elif isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
                holder = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
                if holder in parsers and (holder not in fresh or holder == min(fresh)):
                    for argument in node.args:
                        if isinstance(argument, ast.Constant) and str(argument.value).startswith("-"):
                            yield _Place(str(argument.value), module.path, node.lineno)


def _own_nodes(function: Function) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            waiting.extend(ast.iter_child_nodes(node))


def _fresh(function: Function) -> set[str]:
    """Parsers that a function makes itself. When it makes several, each has options of its own: the first by name stands for them."""
    return {
        node.targets[0].id
        for node in _own_nodes(function)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and isinstance(node.targets[0], ast.Name)
        and dotted(node.value.func).endswith("ArgumentParser")
    }


def _conditional(module: PythonFile, function: Function, node: ast.AST) -> bool:
    """Whether a call stands under a condition or in a ``try``: then two registrations may exclude each other."""
    for up in module.ancestors(node):
        if up is function:
            return False
        if isinstance(up, ast.If | ast.Try | ast.IfExp | ast.Match):
            return True
    return False
