"""The names that a module binds at its top level, and the signatures of its functions and classes."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from synctool.audit.files import PythonFile
from synctool.audit.signature import Signature, class_signature, signature


@dataclass(frozen=True, slots=True)
class ModuleNames:
    """``names`` may be imported from the module. ``dynamic``: it has a ``__getattr__`` or a star import, so that others may be, too."""

    names: frozenset[str]
    dynamic: bool
    signatures: dict[str, Signature]

    def to_json(self) -> list[Any]:
        """JSON values."""
        return [sorted(self.names), self.dynamic, {name: list(sig.to_json()) for name, sig in self.signatures.items()}]

    @classmethod
    def from_json(cls, raw: list[Any]) -> ModuleNames:
        """From ``to_json``."""
        names, dynamic, signatures = raw
        return cls(frozenset(names), dynamic, {name: Signature.from_json(sig) for name, sig in signatures.items()})


def module_names(module: PythonFile) -> ModuleNames:
    """What a module binds, in any branch of its top level."""
    names: set[str] = {"__file__", "__name__", "__doc__", "__path__", "__version__", "__all__"}
    dynamic = False
    signatures: dict[str, Signature] = {}
    doubtful: set[str] = set()
    waiting: list[ast.AST] = list(module.tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.name in names:
                doubtful.add(node.name)  # bound twice: which one holds depends on the platform
            names.add(node.name)
            dynamic |= node.name == "__getattr__"
            found = class_signature(node) if isinstance(node, ast.ClassDef) else signature(node)
            if found is not None:
                signatures[node.name] = found
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                dynamic |= alias.name == "*"
                names.add(alias.asname or alias.name.split(".")[0])
        elif isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store):
                names.add(node.id)
        elif not isinstance(node, ast.Lambda | ast.ListComp | ast.DictComp | ast.SetComp | ast.GeneratorExp):
            waiting.extend(ast.iter_child_nodes(node))
    for name in doubtful:
        signatures.pop(name, None)
    return ModuleNames(frozenset(names), dynamic, signatures)
