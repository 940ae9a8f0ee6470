"""Requests to paths that the pinned engine does not serve, and payload keys that its request models do not have."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator

from synctool.audit.context import Audit
from synctool.audit.engine.routes import served_routes
from synctool.audit.files import PythonFile, flat
from synctool.audit.finding import Hit, Rule

ROUTE = Rule("engine-route", "a request to a path that the engine does not serve", "the server answers 404")
PAYLOAD = Rule(
    "engine-payload",
    "a payload key that the request model does not have",
    "the engine ignores the key, or refuses the request",
)
RULES = (ROUTE, PAYLOAD)

_SENDERS = re.compile(r"(?:^|_)(?:post|get|put|delete|request|fetch|urlopen|url|stream|head)(?:_|$)")
_URL = re.compile(
    r"(?:https?://(?:localhost|127\.0\.0\.1|0\.0\.0\.0|\{\}|\$\{?\w+\}?|<[\w -]+>|\{[\w.\[\]]+\})[^/\s\"'`]*|^\{\})(/[A-Za-z_][\w/.{}-]*)"
)


#: What stands before the path, when that is computed: a server's address rather than a folder.
_ADDRESS = re.compile(r"url|addr|endpoint|router|server|host|worker|engine|base$", re.IGNORECASE)
_SERVED_BELOW_V1 = re.compile(r"/(?:chat/completions|completions|models|embeddings|responses)$")


def check(audit: Audit) -> Iterator[Hit]:
    """Needs the engine."""
    if audit.engine is None:
        return
    known = _Known(audit)
    for module in audit.modules():
        for path, line in _requests(module):
            yield from _judge(audit, known, path, module.path, line)
        yield from _payloads(audit, module)
        yield from _fakes(audit, module, known)
    for document in (*audit.documents, *audit.scripts):
        for number, text in enumerate(audit.tree.lines(document), 1):
            for path in _in_text(text):
                yield from _judge(audit, known, path, document, number)


class _Known:
    """Who serves what: the engine, other recorded services, and servers of the tree itself."""

    def __init__(self, audit: Audit) -> None:
        assert audit.engine is not None
        self.engine = {path.rstrip("/") or "/" for path in audit.engine.served()}
        recorded = {path for served in audit.served for path in served.routes}
        # A base URL ends in a folder of routes (/v1), and frameworks add their own pages.
        folders = {path[: path.index("/", 1)] for path in self.engine if "/" in path[1:]}
        self.everywhere = self.engine | recorded | folders | {"/docs", "/openapi.json", "/redoc"}
        self.own: dict[str, set[str]] = {}
        for module in audit.modules():
            for route, _ in served_routes(module):
                self.own.setdefault(route.path, set()).add(module.path.rpartition("/")[0])
        self._last = {path.rpartition("/")[2] for path in self.engine}

    def allows(self, path: str, where: str) -> bool:
        """Whether a request from a file may be meant for somebody who serves the path.

        A path of the tree's own whose last part the engine serves elsewhere is what a missed translation looks like: it counts beside its server
        only, as a path that only tests serve counts in tests only.
        """
        if path in self.everywhere or "." in path.rpartition("/")[2]:
            return True
        if any("{" in route and _matches(route, path) for route in self.everywhere):
            return True
        for route, homes in self.own.items():
            if route != path and not ("{" in route and _matches(route, path)):
                continue
            if where.rpartition("/")[0] in homes:
                return True
            of_tests = all(home.startswith("tests") for home in homes)
            if path.rpartition("/")[2] not in self._last and (not of_tests or where.startswith("tests/")):
                return True
        return False


def _requests(module: PythonFile) -> Iterator[tuple[str, int]]:
    """Paths of URLs that a module builds, or passes to a function that sends."""
    for taken in module.nodes(ast.arguments):
        named = [*taken.posonlyargs, *taken.args][-len(taken.defaults) or None :] if taken.defaults else []
        for argument, default in (
            *zip(named, taken.defaults, strict=True),
            *zip(taken.kwonlyargs, taken.kw_defaults, strict=True),
        ):
            text = flat(default) if default is not None and argument.arg in ("endpoint", "route", "url_path") else None
            if text is not None and default is not None and text.startswith("/"):
                yield _clean(text), default.lineno
    inside: set[ast.AST] = set()
    for node in (*module.nodes(ast.BinOp), *module.nodes(ast.JoinedStr), *module.nodes(ast.Constant)):
        parent = module.parents.get(node)
        if node in inside or isinstance(parent, ast.JoinedStr):
            continue
        text = flat(node)
        if text is None or len(text) > 300 or "\n" in text:
            continue
        inside.update(ast.walk(node))
        found = _URL.match(text)
        if found and (text.startswith("http") or _names_server(node)):
            path = _clean(found[1])
            # A base URL mostly ends in /v1 already.
            yield (f"/v1{path}" if _SERVED_BELOW_V1.match(path) else path), node.lineno
        elif re.match(r"/[A-Za-z_][\w/.-]*$", text) and isinstance(parent, ast.Call) and node in parent.args:
            name = _name(parent)
            if _SENDERS.search(name) and not (name == "get" and len(parent.args) == 2 and parent.args[0] is node):
                yield _clean(text), node.lineno


def _names_server(node: ast.AST) -> bool:
    """Whether the computed beginning of a string is called like a server's address."""
    while isinstance(node, ast.BinOp):
        node = node.left
    if isinstance(node, ast.JoinedStr) and node.values:
        node = node.values[0]
    if isinstance(node, ast.FormattedValue):
        node = node.value
    if isinstance(node, ast.Call):  # url.rstrip("/"), get_url(...)
        node = node.func.value if isinstance(node.func, ast.Attribute) else node.func
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return _ADDRESS.search(name) is not None


def _in_text(text: str) -> Iterator[str]:
    for found in re.finditer(_URL.pattern.replace("|^\\{\\}", ""), text):
        yield _clean(found[1])
    for found in re.finditer(r"\b(?:get_model_url|post|requests\.post)\([^()\n]*[\"'](/[a-z_][\w/-]*)[\"']\)", text):
        yield _clean(found[1])


def _clean(path: str) -> str:
    return path.rstrip("/.,") or "/"


def _judge(audit: Audit, known: _Known, path: str, where: str, line: int) -> Iterator[Hit]:
    assert audit.engine is not None
    if known.allows(path, where):
        return
    near = nearest_route(path, known.engine)
    mend = (
        f"the engine serves {near}" if near else "see which path does this now, or record who serves it in the baseline"
    )
    told = f"{audit.engine.label} does not serve {path}"
    yield Hit(ROUTE, path, where, line, told, f"{mend}; the payload may differ, too")


def _matches(route: str, path: str) -> bool:
    return re.fullmatch(re.sub(r"\\\{[^}]*\\\}", "[^/]+", re.escape(route)), path) is not None


def nearest_route(path: str, real: set[str]) -> str | None:
    """The served path with the same last part, the longest of them; else the likest."""
    last = path.rpartition("/")[2]
    same = [route for route in real if route.rpartition("/")[2] == last and "{" not in route]
    if same:
        return max(same, key=lambda route: (route.count("/"), route))
    near = difflib.get_close_matches(path, real, n=1, cutoff=0.6)
    return near[0] if near else None


def _fakes(audit: Audit, module: PythonFile, known: _Known) -> Iterator[Hit]:
    """Stand-ins for the engine in tests that serve what the engine does not."""
    if not module.path.startswith("tests/"):
        return
    words = [family.to.lower() for family in audit.policy.families]
    for route, line in served_routes(module):
        around = next((c.name for c in module.nodes(ast.ClassDef) if c.lineno <= line <= (c.end_lineno or 0)), "")
        near = nearest_route(route.path, known.engine)
        if any(word in around.lower() for word in words) and route.path not in known.everywhere and near:
            told = f"{around} serves {route.path}, which the engine does not"
            yield Hit(ROUTE, route.path, module.path, line, told, f"let it serve {near}")


# ---------------------------------------------------------------- payloads


def _payloads(audit: Audit, module: PythonFile) -> Iterator[Hit]:
    """Keys of a dict that is sent to a known route, within one function."""
    assert audit.engine is not None
    text = audit.tree.text(module.path) or ""
    routes = {r.path: r for r in audit.engine.routes if r.models and r.path.rpartition("/")[2] in text}
    if not routes:
        return
    for function in module.functions():
        calls = [n for n in ast.walk(function) if isinstance(n, ast.Call) and _SENDERS.search(_name(n))]
        if not calls:
            continue
        literal, urls = _dicts(function), _strings(function)
        for call in calls:
            target = next(
                (p for a in (*call.args, *(k.value for k in call.keywords)) if (p := _target(a, urls)) in routes), None
            )
            if target is None:
                continue
            fields: set[str] = set()
            for model in routes[target].models:
                fields |= audit.engine.fields_of(model) or set()
            if not fields:
                continue
            for argument in (
                *call.args,
                *(k.value for k in call.keywords if k.arg in ("json", "data", "payload", "body")),
            ):
                for key, line in _keys(argument, literal):
                    if key not in fields:
                        near = difflib.get_close_matches(key, fields, n=1, cutoff=0.6)
                        mend = (
                            f"the nearest field is {near[0]}" if near else "drop it, or put it where the model has it"
                        )
                        yield Hit(PAYLOAD, f"{target} {key}", module.path, line, f"{target} has no field '{key}'", mend)


def _name(call: ast.Call) -> str:
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def _target(node: ast.AST, urls: dict[str, str]) -> str | None:
    text = urls.get(node.id) if isinstance(node, ast.Name) else flat(node)
    found = _URL.match(text) if text else None
    return _clean(found[1]) if found else text


def _strings(function: ast.AST) -> dict[str, str]:
    found = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and (text := flat(node.value)):
            found[node.targets[0].id] = text
    return found


def _dicts(function: ast.AST) -> dict[str, list[tuple[str, int]]]:
    """Variables that hold a dict display, with its keys and those assigned later."""
    found: dict[str, list[tuple[str, int]]] = {}
    nodes = sorted((n for n in ast.walk(function) if isinstance(n, ast.Assign)), key=lambda n: n.lineno)
    for node in nodes:
        target = node.targets[0]
        if isinstance(target, ast.Name) and isinstance(node.value, ast.Dict):
            found.setdefault(target.id, []).extend(_display(node.value))
        elif (
            isinstance(target, ast.Subscript)
            and isinstance(target.value, ast.Name)
            and isinstance(target.slice, ast.Constant)
            and isinstance(target.slice.value, str)
            and target.value.id in found
        ):
            found[target.value.id].append((target.slice.value, node.lineno))
    return found


def _display(node: ast.Dict) -> Iterator[tuple[str, int]]:
    for key in node.keys:
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield key.value, key.lineno


def _keys(node: ast.AST, literal: dict[str, list[tuple[str, int]]]) -> list[tuple[str, int]]:
    if isinstance(node, ast.Dict):
        return list(_display(node))
    return literal.get(node.id, []) if isinstance(node, ast.Name) else []
