"""Comments and docstrings that upstream wrote and that were lost on the way."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator

from synctool.audit.context import Audit
from synctool.audit.files import Files
from synctool.audit.finding import Hit, Rule
from synctool.policy.model import OwnerKind

RULE = Rule(
    "lost-comment",
    "a comment or docstring of upstream's is missing above code that came over",
    "the reason for the code is lost, and the next merge conflicts",
)
RULES = (RULE,)


def check(audit: Audit) -> Iterator[Hit]:
    """Comments that the range brought, or that downstream had before the sync: code below them is here word for word, they are not."""
    if audit.base is None or audit.through is None:
        return
    for path in sorted(audit.changed):
        if (
            not path.endswith(".py")
            or path not in audit.through
            or audit.policy.owner_of(path).kind is not OwnerKind.MIRROR
        ):
            continue
        mine = audit.tree.text(path) or ""
        here = {line.strip() for line in mine.split("\n")}
        flat = " ".join(mine.replace("#", " ").split())
        old = _known(audit.base, path)
        before = _known(audit.before, path) if audit.before is not None else frozenset()
        for comment, anchor in _comments(audit.through, path):
            fresh = comment not in old or comment in before
            if (
                fresh
                and len(comment) >= 20
                and anchor in here
                and " ".join(comment.replace("#", " ").split()) not in flat
            ):
                line = next(n for n, text in enumerate(mine.split("\n"), 1) if text.strip() == anchor)
                yield Hit(RULE, path, path, line, f"lost: {comment[:100]}", "put it back above this line")


def _known(files: Files, path: str) -> frozenset[str]:
    return frozenset(comment for comment, _ in _comments(files, path)) if path in files else frozenset()


def _comments(files: Files, path: str) -> Iterator[tuple[str, str]]:
    """(comment line, the code line it stands above) and (first line of a docstring, the ``def`` it belongs to)."""
    text = files.text(path)
    if text is None:
        return
    lines = text.split("\n")
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        return
    for token in tokens:
        if token.type == tokenize.COMMENT and lines[token.start[0] - 1].lstrip().startswith("#"):
            anchor = next(
                (
                    line.strip()
                    for line in lines[token.start[0] :]
                    if line.strip() and not line.lstrip().startswith("#")
                ),
                "",
            )
            if len(anchor) >= 12:
                yield token.string, anchor
    module = files.python(path)
    if module is None:
        return
    for node in module.nodes(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef):
        told = ast.get_docstring(node)
        if told:
            yield told.split("\n")[0], lines[node.lineno - 1].strip()
