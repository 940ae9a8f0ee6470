"""How a function may be called, and whether a call fits."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

#: Decorators that leave the signature as it is written.
_TRANSPARENT = {
    "abstractmethod", "cache", "cached", "classmethod", "contextmanager", "asynccontextmanager", "inference_mode", "lru_cache", "no_grad",
    "override", "staticmethod",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Signature:
    """Parameters by position and by keyword alone, those without a default, and whether more of either kind is taken."""

    positional: tuple[str, ...]
    keyword_only: tuple[str, ...]
    required: frozenset[str]
    positional_only: int
    more_positional: bool
    more_keywords: bool

    def to_json(self) -> list[Any]:
        """JSON values."""
        return [
            list(self.positional), list(self.keyword_only), sorted(self.required), self.positional_only,
            self.more_positional, self.more_keywords,
        ]  # fmt: skip

    @classmethod
    def from_json(cls, raw: list[Any]) -> Signature:
        """From ``to_json``."""
        return cls(tuple(raw[0]), tuple(raw[1]), frozenset(raw[2]), raw[3], raw[4], raw[5])

    def bound(self) -> Signature:
        """Without its first parameter, as a method is called."""
        return Signature(
            self.positional[1:], self.keyword_only, self.required - set(self.positional[:1]), max(self.positional_only - 1, 0),
            self.more_positional, self.more_keywords,
        )  # fmt: skip

    def misfit(self, call: ast.Call) -> str | None:
        """What is wrong with a call, or None when it fits or can't be told (``*args`` and ``**kwargs`` hide what they hold)."""
        spread = any(isinstance(argument, ast.Starred) for argument in call.args)
        double = any(word.arg is None for word in call.keywords)
        given = {word.arg for word in call.keywords if word.arg is not None}
        by_name = set(self.positional[self.positional_only :]) | set(self.keyword_only)
        unknown = sorted(given - by_name)
        if unknown and not self.more_keywords:
            return f"has no parameter {', '.join(unknown)}"
        if spread:
            return None
        if len(call.args) > len(self.positional) and not self.more_positional:
            return f"takes {len(self.positional)} positional arguments, {len(call.args)} given"
        if double:
            return None
        missing = self.required - given - set(self.positional[: len(call.args)])
        if missing:
            ordered = [name for name in (*self.positional, *self.keyword_only) if name in missing]
            return f"needs {', '.join(ordered)}"
        return None


def signature(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Signature | None:
    """The signature of a function as written; None when a decorator may change it."""
    for decorator in function.decorator_list:
        node = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
        if name not in _TRANSPARENT:
            return None
    taken = function.args
    positional = [argument.arg for argument in (*taken.posonlyargs, *taken.args)]
    required = set(positional[: len(positional) - len(taken.defaults)])
    required |= {
        argument.arg for argument, default in zip(taken.kwonlyargs, taken.kw_defaults, strict=True) if default is None
    }
    return Signature(
        tuple(positional), tuple(argument.arg for argument in taken.kwonlyargs), frozenset(required), len(taken.posonlyargs),
        taken.vararg is not None, taken.kwarg is not None,
    )  # fmt: skip


def class_signature(node: ast.ClassDef) -> Signature | None:
    """How a class is called: by its own ``__init__``, or by the fields of a plain dataclass without bases. None when neither tells."""
    if node.keywords:
        return None
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            if _decorators(node.decorator_list) - {"final"}:
                return None
            found = signature(item)
            return found.bound() if found is not None else None
    if _decorators(node.decorator_list) == {"dataclass"} and not node.bases:
        return _dataclass(node)
    return None


def _decorators(nodes: Iterable[ast.expr]) -> set[str]:
    found = set()
    for decorator in nodes:
        node = decorator.func if isinstance(decorator, ast.Call) else decorator
        found.add(node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", ""))
    return found


def _dataclass(node: ast.ClassDef) -> Signature | None:
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and decorator.keywords:
            words = {word.arg for word in decorator.keywords}
            if words - {"frozen", "slots", "eq", "order", "repr", "unsafe_hash"}:
                return None
    positional: list[str] = []
    required: set[str] = set()
    for item in node.body:
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        kind = ast.unparse(item.annotation)
        if kind.startswith(("ClassVar", "KW_ONLY", "typing.ClassVar")):
            if "KW_ONLY" in kind:
                return None
            continue
        if isinstance(item.value, ast.Call) and any(word.arg in ("init", "kw_only") for word in item.value.keywords):
            return None
        positional.append(item.target.id)
        has_default = item.value is not None and not (
            isinstance(item.value, ast.Call)
            and not any(word.arg in ("default", "default_factory", "factory") for word in item.value.keywords)
            and getattr(item.value.func, "id", getattr(item.value.func, "attr", "")) == "field"
        )
        if not has_default:
            required.add(item.target.id)
    return Signature(tuple(positional), (), frozenset(required), 0, False, False)
