"""Calls that do not fit the signature of the function, here or in the pinned engine."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from synctool.audit.context import Audit
from synctool.audit.files import Function, PythonFile, dotted
from synctool.audit.finding import Hit, Rule
from synctool.audit.signature import Signature, class_signature, signature

RULE = Rule(
    "call-signature", "a call does not fit the function's signature", "it fails with a TypeError when the line runs"
)
RULES = (RULE,)


def check(audit: Audit) -> Iterator[Hit]:
    """Every call whose target is certain: imported, local to the module, or a method called on ``self``."""
    for module in audit.modules():
        yield from _module(audit, module)


def _module(audit: Audit, module: PythonFile) -> Iterator[Hit]:
    known = _imported(audit, module)
    local = _local(module)
    rebound = {n.id for n in module.nodes(ast.Name) if isinstance(n.ctx, ast.Store)} | {
        a.arg for a in module.nodes(ast.arg)
    }
    for call in module.nodes(ast.Call):
        name = dotted(call.func)
        if not name or name.split(".")[0] in rebound - {"self", "cls"}:
            continue
        found: tuple[Signature, str] | None
        if name.startswith("self.") and name.count(".") == 1:
            found = _method(module, call, name.removeprefix("self."))
        else:
            found = local.get(name) or known.get(name)
        if found is None or _expects_error(module, call):
            continue
        sig, where = found
        wrong = sig.misfit(call)
        if wrong is not None:
            short = name.rpartition(".")[2]
            yield Hit(
                RULE,
                f"{module.path} calls {where.partition(':')[0]}",
                module.path,
                call.lineno,
                f"{short}() of {where} {wrong}",
                "give what it needs, or mend the function",
            )


def _expects_error(module: PythonFile, call: ast.Call) -> bool:
    """A call inside ``with pytest.raises(TypeError)``."""
    return any(
        isinstance(up, ast.With) and "TypeError" in ast.unparse(up.items[0].context_expr)
        for up in module.ancestors(call)
    )


def _local(module: PythonFile) -> dict[str, tuple[Signature, str]]:
    """Functions and classes bound once, at the top level."""
    found: dict[str, tuple[Signature, str]] = {}
    seen: set[str] = set()
    for function in module.definitions():
        if function.name in seen:
            found.pop(function.name, None)
            continue
        seen.add(function.name)
        if module.parents[function] is not module.tree:
            continue
        sig = class_signature(function) if isinstance(function, ast.ClassDef) else signature(function)
        if sig is not None:
            found[function.name] = (sig, f"{module.path}:{function.lineno}")
    return found


def _imported(audit: Audit, module: PythonFile) -> dict[str, tuple[Signature, str]]:
    """Names from ``from x import y`` and ``import x as y``, ours and the engine's, with their signatures."""
    found: dict[str, tuple[Signature, str]] = {}
    doubtful: set[str] = set()
    for node in module.nodes(ast.ImportFrom):
        source = absolute(module.path, node)
        for alias in node.names:
            bound = alias.asname or alias.name
            if bound in found:
                doubtful.add(bound)
            sig = _signature_of(audit, source, alias.name)
            if sig is not None:
                found[bound] = sig
            inner = f"{source}.{alias.name}"
            found.update(_module_signatures(audit, inner, bound))
    for plain in module.nodes(ast.Import):
        for alias in plain.names:
            found.update(_module_signatures(audit, alias.name, alias.asname or alias.name))
    return {name: sig for name, sig in found.items() if name not in doubtful}


def _module_signatures(audit: Audit, name: str, bound: str) -> Iterator[tuple[str, tuple[Signature, str]]]:
    path = audit.own_module(name) if name.split(".")[0] in audit.own_folders else None
    names = audit.own_names(path) if path is not None else None
    for function, sig in (names.signatures if names is not None else {}).items():
        yield f"{bound}.{function}", (sig, str(path))


def _signature_of(audit: Audit, source: str, name: str) -> tuple[Signature, str] | None:
    top = source.split(".")[0]
    if top in audit.own_folders:
        path = audit.own_module(source)
        names = audit.own_names(path) if path is not None else None
        sig = names.signatures.get(name) if names is not None else None
        return (sig, str(path)) if sig is not None else None
    if audit.engine is not None and top == audit.engine.package:
        known = audit.engine.module(source)
        sig = known.signatures.get(name) if known is not None else None
        return (sig, f"{audit.engine.label} {source}") if sig is not None else None
    return None


def absolute(path: str, node: ast.ImportFrom) -> str:
    """The dotted module that a ``from`` names, relative ones resolved."""
    if not node.level:
        return node.module or ""
    parts = path.split("/")[: -node.level]
    return ".".join([*parts, *([node.module] if node.module else [])])


def _method(module: PythonFile, call: ast.Call, name: str) -> tuple[Signature, str] | None:
    """A method of the class around the call, when the class defines it once and never assigns it."""
    around = next((up for up in module.ancestors(call) if isinstance(up, ast.ClassDef)), None)
    if around is None:
        return None
    defined = [item for item in around.body if isinstance(item, Function) and item.name == name]
    if len(defined) != 1:
        return None
    if any(n.attr == name and isinstance(n.ctx, ast.Store) for n in module.nodes(ast.Attribute)):
        return None
    sig = signature(defined[0])
    marks = {getattr(d, "id", "") for d in defined[0].decorator_list}
    if sig is None or "property" in marks:
        return None
    return (sig if "staticmethod" in marks else sig.bound()), f"{module.path}:{defined[0].lineno}"
