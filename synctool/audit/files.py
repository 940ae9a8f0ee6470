"""The files of a tree, read in one go and parsed once. A parsed Python file knows its nodes by type."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TypeVar

from synctool.git.tree import SUBMODULE, SYMLINK, Entry, Tree
from synctool.translate.translator import decode

Node = TypeVar("Node", bound=ast.AST)
Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


class PythonFile:
    """A module that parses."""

    def __init__(self, path: str, tree: ast.Module) -> None:
        self.path = path
        self.tree = tree

    @cached_property
    def _by_type(self) -> dict[type, list[ast.AST]]:
        found: dict[type, list[ast.AST]] = {}
        self.parents: dict[ast.AST, ast.AST] = {}
        waiting: list[ast.AST] = [self.tree]
        while waiting:
            node = waiting.pop()
            found.setdefault(type(node), []).append(node)
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
                waiting.append(child)
        return found

    def nodes(self, *kinds: type[Node]) -> Iterator[Node]:
        """All nodes of exactly these types."""
        for kind in kinds:
            yield from self._by_type.get(kind, ())  # type: ignore[misc]

    def functions(self) -> Iterator[Function]:
        """All functions and methods."""
        yield from self.nodes(ast.FunctionDef)
        yield from self.nodes(ast.AsyncFunctionDef)

    def definitions(self) -> Iterator[Definition]:
        """All functions, methods and classes."""
        yield from self.functions()
        yield from self.nodes(ast.ClassDef)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, innermost first."""
        assert self._by_type is not None
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent


class Files:
    """The regular files of a tree. ``name`` maps a stored path to the path by which it is known here (None: left out)."""

    def __init__(
        self,
        tree: Tree,
        *,
        name: Callable[[str], str | None] | None = None,
        content: Callable[[bytes, str], bytes] | None = None,
    ) -> None:
        self._store = tree.store
        self._content = content
        self.entries: dict[str, Entry] = {}
        for path, entry in tree.items():
            known = name(path) if name is not None else path
            if known is not None and entry.mode not in (SYMLINK, SUBMODULE):
                self.entries[known] = entry
        self._data: dict[str, bytes] = {}
        self._text: dict[str, str | None] = {}
        self._line_sets: dict[str, frozenset[str]] = {}
        self._python: dict[str, PythonFile | None] = {}

    def __contains__(self, path: str) -> bool:
        return path in self.entries

    def preload(self, paths: list[str]) -> None:
        """Read many files in one conversation with git."""
        wanted = [path for path in paths if path in self.entries and path not in self._data]
        blobs = self._store.read_many(self.entries[path].oid for path in wanted)
        for path in wanted:
            data = blobs.get(self.entries[path].oid, b"")
            self._data[path] = self._content(data, path) if self._content is not None else data

    def data(self, path: str) -> bytes:
        """A file's content, empty when there is no such file or when it is over the size bound."""
        if path not in self.entries:
            return b""
        if path not in self._data:
            self.preload([path])
        return self._data[path]

    def text(self, path: str) -> str | None:
        """A file as text, None when it is binary or not UTF-8."""
        if path not in self._text:
            self._text[path] = decode(self.data(path)) if path in self.entries else None
        return self._text[path]

    def lines(self, path: str) -> list[str]:
        """The lines of a text file without their ends; none of a binary one."""
        return (self.text(path) or "").split("\n")

    def line_set(self, path: str) -> frozenset[str]:
        """The lines of a file, for asking whether it has one."""
        if path not in self._line_sets:
            self._line_sets[path] = frozenset(self.lines(path))
        return self._line_sets[path]

    def python(self, path: str) -> PythonFile | None:
        """A parsed module, or None when it does not parse (the lint says so)."""
        if path not in self._python:
            text = self.text(path)
            self._python[path] = None if text is None else parse(path, text)
        return self._python[path]

    def ending(self, *suffixes: str) -> list[str]:
        """Paths with one of these endings, in order."""
        return sorted(path for path in self.entries if path.endswith(suffixes))

    def modules(self) -> Iterator[PythonFile]:
        """Every Python file that parses."""
        for path in self.ending(".py"):
            module = self.python(path)
            if module is not None:
                yield module


def parse(path: str, text: str) -> PythonFile | None:
    """A module from text, None when it is not valid Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return PythonFile(path, ast.parse(text))
    except (SyntaxError, ValueError, RecursionError):
        return None


def dotted(node: ast.AST) -> str:
    """``a.b.c`` of a chain of attributes, empty for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])


def flat(node: ast.AST) -> str | None:
    """The text of a string expression with ``{}`` for what is computed; None for what is no string."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = flat(node.left), flat(node.right)
        return None if left is None and right is None else (left or "{}") + (right or "{}")
    return None
