"""Fields of a dataclass, read from its source file without importing it: importing vLLM or Megatron to print a help text would take seconds."""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path


@dataclass(frozen=True)
class Field:
    """`annotation` and `default` are source text. `flags`: names that Megatron's metadata gives to the command line."""

    name: str
    annotation: str
    default: str | None
    doc: str
    flags: tuple[str, ...] = ()


def package_file(package: str, relative: str) -> Path | None:
    """The path of a file of an installed top-level package, or None when the package or the file is absent."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / relative
        if path.is_file():
            return path
    return None


@lru_cache(maxsize=32)
def read_fields(path: Path, class_name: str) -> tuple[Field, ...]:
    """The annotated fields in the body of `class_name`, in order; base classes are not followed. Raises LookupError when the class is absent."""
    for node in _module(path).body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            return tuple(_fields(node.body))
    raise LookupError(f"{path} defines no class {class_name}")


@lru_cache(maxsize=32)
def _module(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _fields(body: list[ast.stmt]) -> list[Field]:
    found = []
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        annotation = ast.unparse(statement.annotation).strip("'\"")
        if annotation.startswith("ClassVar") or statement.target.id.startswith("_"):
            continue
        doc = ""
        if (
            isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            doc = " ".join(following.value.value.split())
        default = ast.unparse(statement.value) if statement.value else None
        found.append(Field(statement.target.id, annotation, default, doc, _flags(statement.value)))
    return found


def _flags(value: ast.expr | None) -> tuple[str, ...]:
    """The names in field(metadata={"argparse_meta": {"arg_names": [...]}})."""
    if not isinstance(value, ast.Call):
        return ()
    for keyword in value.keywords:
        if keyword.arg == "metadata":
            try:
                metadata = ast.literal_eval(keyword.value)
            except ValueError:
                return ()
            return tuple(metadata.get("argparse_meta", {}).get("arg_names", ()))
    return ()
