"""The engine's command-line arguments: fields of its argument classes and option strings that its parsers register."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from synctool.audit.files import PythonFile

#: Argument classes are dataclasses named so; their fields are the engine's options.
_ARGUMENT_CLASS = re.compile(r"(?:Engine|Frontend|Server|Cli)Args$")


def argument_fields(module: PythonFile) -> set[str]:
    """Fields of argument dataclasses in a module, as attribute names."""
    found = set()
    for node in module.nodes(ast.ClassDef):
        if _ARGUMENT_CLASS.search(node.name):
            found |= {
                item.target.id
                for item in node.body
                if isinstance(item, ast.AnnAssign)
                and isinstance(item.target, ast.Name)
                and not ast.unparse(item.annotation).startswith(("ClassVar", "InitVar"))
            }
    return found


def registered_options(module: PythonFile) -> Iterator[tuple[str, ast.Call]]:
    """``(option string, call)`` of each literal option that a module registers on a parser."""
    for call in module.nodes(ast.Call):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name.endswith(("add_argument", "reset_arg", "add_flag")):
            for argument in call.args:
                if (
                    isinstance(argument, ast.Constant)
                    and isinstance(argument.value, str)
                    and argument.value.startswith("-")
                ):
                    yield argument.value, call
