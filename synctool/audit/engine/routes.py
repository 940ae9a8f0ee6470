"""The engine's HTTP routes and the fields of its request models, from decorators and annotations."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from synctool.audit.files import PythonFile, dotted

_VERBS = ("get", "post", "put", "delete", "patch", "head", "options", "route", "api_route", "websocket")
_ADDERS = ("add_api_route", "add_route", "add_get", "add_post", "add_put", "add_delete", "add_patch", "mount", "Mount")


@dataclass(frozen=True, slots=True)
class Route:
    """A served path and the names of the classes that its handler's parameters are annotated with."""

    path: str
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Model:
    """A class with annotated fields: its own field names and its bases' names."""

    fields: tuple[str, ...]
    bases: tuple[str, ...]


def served_routes(module: PythonFile) -> Iterator[tuple[Route, int]]:
    """Routes that a module serves (FastAPI, Starlette and aiohttp spellings), each with its line."""
    for function in module.functions():
        for decorator in function.decorator_list:
            if (
                isinstance(decorator, ast.Call)
                and isinstance(decorator.func, ast.Attribute)
                and decorator.func.attr in _VERBS
            ):
                path = _path_of(decorator)
                if path is not None:
                    yield Route(path, tuple(_annotations(function))), decorator.lineno
    for call in module.nodes(ast.Call):
        name = dotted(call.func).rpartition(".")[2] or getattr(call.func, "attr", "")
        if name in _ADDERS and (path := _path_of(call)) is not None:
            yield Route(path), call.lineno


def is_program(module: PythonFile) -> bool:
    """Whether a module makes its application when it is imported: a program of its own, none of the server's routers."""
    return any(
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and dotted(node.value.func).rpartition(".")[2] in ("FastAPI", "Starlette", "Flask")
        for node in module.tree.body
    )


def _path_of(call: ast.Call) -> str | None:
    candidates = [*call.args[:2], *(word.value for word in call.keywords if word.arg == "path")]
    for node in candidates:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("/"):
            return node.value
    return None


def _annotations(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for argument in (*function.args.args, *function.args.kwonlyargs):
        if argument.annotation is not None:
            for node in ast.walk(argument.annotation):
                if isinstance(node, ast.Name | ast.Attribute):
                    yield dotted(node).rpartition(".")[2]


def models(module: PythonFile) -> Iterator[tuple[str, Model]]:
    """Classes with annotated fields. An alias counts as a field of that name."""
    for node in module.nodes(ast.ClassDef):
        fields: list[str] = []
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                fields.append(item.target.id)
                if isinstance(item.value, ast.Call):
                    fields += [
                        word.value.value
                        for word in item.value.keywords
                        if word.arg in ("alias", "validation_alias")
                        and isinstance(word.value, ast.Constant)
                        and isinstance(word.value.value, str)
                    ]
        yield node.name, Model(tuple(fields), tuple(dotted(base).rpartition(".")[2] for base in node.bases))
