"""Imports that resolve neither in the tree nor in the pinned engine."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator

from synctool.audit.checks.signatures import absolute
from synctool.audit.context import Audit
from synctool.audit.engine.names import ModuleNames
from synctool.audit.files import PythonFile
from synctool.audit.finding import Hit, Rule

ENGINE = Rule(
    "engine-import", "an import that the pinned engine does not have", "it fails with an ImportError at start-up"
)
OWN = Rule(
    "own-import", "an import that this tree does not have", "it fails with an ImportError when the module is loaded"
)
RULES = (ENGINE, OWN)


def check(audit: Audit) -> Iterator[Hit]:
    """Imports of the tree's own packages and of the engine. An import that expects its failure is left alone, unless the whole module is unheard of."""
    for module in audit.modules():
        for plain in module.nodes(ast.Import):
            for alias in plain.names:
                yield from _one(audit, module, plain, alias.name, None)
        for node in module.nodes(ast.ImportFrom):
            source = absolute(module.path, node)
            for alias in node.names:
                yield from _one(audit, module, node, source, alias.name)


def _one(audit: Audit, module: PythonFile, node: ast.stmt, source: str, name: str | None) -> Iterator[Hit]:
    top = source.split(".")[0]
    engine = audit.engine
    if engine is not None and top == engine.package and top not in audit.own_folders:
        names = engine.module(source)
        if not engine.has_module(source):
            second = ".".join(source.split(".")[:2])
            if guarded(module, node) and engine.has_module(second):
                return  # written for another release of the engine
            near = _near_module(audit, source)
            mend = f"the nearest module is {near}" if near else "use what the engine has, or drop the import"
            yield Hit(
                ENGINE,
                second if not engine.has_module(second) else source,
                module.path,
                node.lineno,
                f"{engine.label} has no module {source}",
                mend,
            )
        elif (
            name is not None
            and not guarded(module, node)
            and _lacks(names, name)
            and not engine.has_module(f"{source}.{name}")
        ):
            assert names is not None
            near_names = difflib.get_close_matches(name, names.names, n=1)
            mend = f"did it become {near_names[0]}?" if near_names else "use what the engine has"
            yield Hit(
                ENGINE, f"{source}.{name}", module.path, node.lineno, f"{engine.label} has no {name} in {source}", mend
            )
    elif top in audit.own_folders and not guarded(module, node):
        path = audit.own_module(source)
        if _upstreams_fault(audit, module, node, source, name):
            return
        if path is None:
            beside = "/".join([*module.path.split("/")[:-1], source.replace(".", "/")])
            if f"{beside}.py" in audit.tree or not audit.own_module(top) or f"{top}/__init__.py" not in audit.tree:
                return
            yield Hit(
                OWN, source, module.path, node.lineno, f"there is no module {source}", "import it from where it is now"
            )
        elif name is not None and _lacks(audit.own_names(path), name) and audit.own_module(f"{source}.{name}") is None:
            yield Hit(
                OWN,
                source,
                module.path,
                node.lineno,
                f"{path} has no {name}",
                "import it from where it is now, or define it",
            )


def _upstreams_fault(audit: Audit, module: PythonFile, node: ast.stmt, source: str, name: str | None) -> bool:
    """Whether upstream has the same import and does not have what it names either."""
    if not audit.upstreams_own(module.path, node.lineno) or audit.through is None:
        return False
    base = source.replace(".", "/")
    if f"{base}.py" in audit.through:
        return False  # a name in a module: downstream's module may have lost it
    return not any(f"{base}{end}" in audit.through for end in (f"/{name}.py", f"/{name}/__init__.py"))


def _lacks(names: ModuleNames | None, name: str) -> bool:
    return names is not None and name != "*" and not names.dynamic and name not in names.names


def guarded(module: PythonFile, node: ast.AST) -> bool:
    """Whether an import stands in a ``try`` that catches its failure, or under a condition on a version."""
    inner: ast.AST = node
    for up in module.ancestors(node):
        if isinstance(up, ast.Try) and any(inner is item or inner in ast.walk(item) for item in up.body):
            for handler in up.handlers:
                caught = ast.unparse(handler.type) if handler.type is not None else "Exception"
                if any(word in caught for word in ("ImportError", "ModuleNotFoundError", "Exception")):
                    return True
        inner = up
    return False


def _near_module(audit: Audit, source: str) -> str | None:
    """A module of the engine with the same last name."""
    assert audit.engine is not None
    last = source.rpartition(".")[2]
    found = [
        path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for path in audit.engine.source.paths
        if path.startswith(f"{audit.engine.package}/") and path.endswith((f"/{last}.py", f"/{last}/__init__.py"))
    ]
    return min(found, key=len) if found else None
