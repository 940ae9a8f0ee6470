"""Names, options and files that upstream's range removed or renamed and that something here still uses."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator

from synctool.audit.context import Audit
from synctool.audit.engine.arguments import registered_options
from synctool.audit.files import Files, PythonFile, dotted
from synctool.audit.finding import Edit, Hit, Rule

NAME = Rule(
    "removed-name",
    "a name that upstream removed is still used",
    "it fails with an AttributeError or ImportError when the line runs",
)
OPTION = Rule(
    "removed-option",
    "an option that upstream removed is still passed",
    "the parser stops with 'unrecognized arguments'",
)
FILE = Rule("removed-file", "a file that upstream removed is still named", "the command or link leads nowhere")
RULES = (NAME, OPTION, FILE)

_BINDING = re.compile(
    r"(?:\bdef|\bclass|\bimport|\bas)\s+(\w+)|^\s*(?:\w+\.)?(\w+)\s*(?::[^=\n]+)?=(?!=)|[(,]\s*(\w+)\s*[=:,)]|^\s*(\w+)\s*:|import\s+\(?([\w, ]+)",
    re.MULTILINE,
)


def check(audit: Audit) -> Iterator[Hit]:
    """Needs upstream's trees. A line that upstream still has so is upstream's own."""
    for hit in _all(audit):
        if not audit.upstreams_own(hit.path, hit.line):
            yield hit


def _all(audit: Audit) -> Iterator[Hit]:
    if audit.base is None or audit.through is None:
        return
    changed = sorted(path for path, entry in audit.base.entries.items() if audit.through.entries.get(path) != entry)
    yield from _names(audit, audit.base, audit.through, [path for path in changed if path.endswith(".py")])
    yield from _options(audit, audit.base, audit.through, [path for path in changed if path.endswith(".py")])
    yield from _files(audit, [path for path in changed if path not in audit.through and path not in audit.tree])


# ---------------------------------------------------------------- names


def _names(audit: Audit, base: Files, through: Files, changed: list[str]) -> Iterator[Hit]:
    gone: dict[str, str] = {}
    for path in changed:
        module = base.python(path)
        for name in _defined(module.tree) if module is not None else ():
            gone.setdefault(name, path)
    gone = {name: path for name, path in gone.items() if _telling(name)}
    if not gone:
        return
    kept = _bound(through, through.ending(".py"))
    gone = {name: path for name, path in gone.items() if name not in kept}
    own = [path for path in audit.tree.ending(".py") if not path.startswith("tests/")]
    here = _bound(audit.tree, own) if gone else set()
    gone = {name: path for name, path in gone.items() if name not in here}
    for name in sorted(gone):
        places = list(_uses(audit, name))
        if not places:
            continue
        heir = _heir(name, gone[name], base, through)
        mend = f"use '{heir}', its heir upstream; look at its parameters" if heir else "see what upstream does instead"
        for path, line in places:
            yield Hit(NAME, name, path, line, f"'{name}' was removed from {gone[name]} upstream", mend)


def _telling(name: str) -> bool:
    """Whether a name is distinct enough to be looked for by its spelling."""
    return (
        len(name) >= 6
        and not name.startswith("__")
        and ("_" in name.strip("_") or name != name.lower() or len(name) >= 12)
    )


def _defined(tree: ast.AST) -> Iterator[str]:
    """Functions, methods, classes, fields and upper-case constants; what is local to a function is nobody else's."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.ClassDef):
            yield node.name
            yield from _defined(node)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name) and target.id.isupper())
        elif isinstance(node, ast.If | ast.Try):
            yield from _defined(node)


def _bound(files: Files, paths: list[str]) -> set[str]:
    """Every name that any of the files binds, by spelling: too many rather than too few."""
    files.preload(paths)
    found: set[str] = set()
    for path in paths:
        for groups in _BINDING.findall(files.text(path) or ""):
            for group in groups:
                found.update(re.findall(r"\w+", group))
    return found


def _uses(audit: Audit, name: str) -> Iterator[tuple[str, int]]:
    """Places that use a name. A constant in upper case counts in code alone: elsewhere it is an environment variable's name."""
    word = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])")
    end = re.compile(rf"(?:^|[.:]){re.escape(name)}$")
    constant = name == name.upper()
    for path in audit.tree.ending(".py", ".sh", ".yml", ".yaml", ".md", ".rst", ".toml"):
        text = audit.tree.text(path)
        if text is None or name not in text:
            continue
        module = audit.tree.python(path) if path.endswith(".py") else None
        if module is None:
            if not constant:
                yield from ((path, n) for n, line in enumerate(text.split("\n"), 1) if word.search(line))
            continue
        stored = {node.name for node in module.definitions()}
        stored |= {argument.arg for argument in module.nodes(ast.arg)}
        stored |= {n.id for n in module.nodes(ast.Name) if isinstance(n.ctx, ast.Store)}
        if name in stored:
            continue
        yield from ((path, n.lineno) for n in module.nodes(ast.Attribute) if n.attr == name)
        yield from ((path, n.lineno) for n in module.nodes(ast.Name) if n.id == name)
        yield from ((path, n.lineno) for n in module.nodes(ast.ImportFrom) if any(a.name == name for a in n.names))
        if not constant:
            strings = (n for n in module.nodes(ast.Constant) if isinstance(n.value, str) and len(n.value) < 300)
            yield from ((path, n.lineno) for n in strings if end.search(str(n.value)))


def _heir(name: str, path: str, base: Files, through: Files) -> str | None:
    """The name that took a removed one's place in the same file: new there, as public as it was, with the likest body or spelling."""
    old, new = base.python(path), through.python(path)
    if old is None or new is None:
        return None
    before = {n.name: n for n in old.definitions()}
    if name not in before:
        near = difflib.get_close_matches(name, [n for n in _defined(new.tree) if n != name], n=1, cutoff=0.6)
        return near[0] if near else None
    likely = [
        n
        for n in new.definitions()
        if n.name not in before
        and n.name.startswith("_") == name.startswith("_")
        and isinstance(n, ast.ClassDef) == isinstance(before[name], ast.ClassDef)
    ]
    words = _words(before[name])
    scored = [(len(words & (_words(n) | _called(new, n))) / len(words), n.name) for n in likely]
    best = max(scored, default=(0.0, ""))
    return best[1] if best[0] >= 0.4 else None


def _words(node: ast.AST) -> set[str]:
    """The names and attributes in a definition."""
    found = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    found |= {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    return found | {str(n.value) for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def _called(module: PythonFile, node: ast.AST) -> set[str]:
    """The words of helpers of the same file that a definition calls: a body is often moved into one."""
    calls = {dotted(n.func).rpartition(".")[2] for n in ast.walk(node) if isinstance(n, ast.Call)}
    helpers = [n for n in module.functions() if n.name in calls and n.name.startswith("_")]
    return {word for helper in helpers for word in _words(helper)}


# ---------------------------------------------------------------- options and files


def _options(audit: Audit, base: Files, through: Files, changed: list[str]) -> Iterator[Hit]:
    def of(files: Files, paths: list[str]) -> set[str]:
        found: set[str] = set()
        for path in paths:
            if b"add_argument" in files.data(path) and (module := files.python(path)) is not None:
                found |= {option for option, _ in registered_options(module) if option.startswith("--")}
        return found

    before = of(base, changed)
    if not before:
        return
    gone = before - of(through, through.ending(".py"))
    gone -= of(audit.tree, audit.tree.ending(".py"))
    if audit.engine is not None:
        gone = {option for option in gone if not _is_engines(audit, option)}
    added = sorted(of(through, changed) - before)
    for option in sorted(gone):
        near = difflib.get_close_matches(option, added, n=1, cutoff=0.6)
        mend = f"use {near[0]}" if near else "drop it, or see what upstream does instead"
        word = re.compile(rf"(?<![\w-]){re.escape(option)}(?![\w-])")
        for path in audit.tree.ending(".py", ".sh", ".yml", ".yaml", ".md", ".rst"):
            if option not in (audit.tree.text(path) or ""):
                continue
            for number, line in enumerate(audit.tree.lines(path), 1):
                if word.search(line):
                    edit = (
                        Edit(path, number, option, near[0]) if near and path.endswith((".sh", ".md", ".rst")) else None
                    )
                    yield Hit(OPTION, option, path, number, f"upstream removed {option}", mend, edit)


def _is_engines(audit: Audit, option: str) -> bool:
    assert audit.engine is not None
    return option.removeprefix(f"--{audit.engine.package}-") in audit.engine.arguments


def _files(audit: Audit, removed: list[str]) -> Iterator[Hit]:
    for gone in removed:
        name = gone.rpartition("/")[2]
        if len(name) < 9 or any(path.endswith("/" + name) or path == name for path in audit.tree.entries):
            continue
        word = re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w-])")
        for path in audit.tree.ending(".py", ".sh", ".yml", ".yaml", ".md", ".rst", ".toml", "Dockerfile", "justfile"):
            if path in audit.ci_files or name not in (audit.tree.text(path) or ""):
                continue  # CI files have a check of their own
            for number, line in enumerate(audit.tree.lines(path), 1):
                if word.search(line) and "://" not in line[: line.find(name)].rpartition(" ")[2]:
                    yield Hit(
                        FILE,
                        gone,
                        path,
                        number,
                        f"{gone} was removed upstream and is not here",
                        "name its successor, or drop the line",
                    )
