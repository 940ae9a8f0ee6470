"""Comments and docstrings that upstream wrote and that were lost on the way."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from difflib import SequenceMatcher

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
            or audit.through.entries[path] == audit.base.entries.get(path)
            or audit.policy.owner_of(path).kind is not OwnerKind.MIRROR
        ):
            continue
        mine = audit.tree.text(path) or ""
        lines = [line.strip() for line in mine.split("\n")]
        places = {line: number for number, line in reversed(list(enumerate(lines, 1)))}
        flat = " ".join(mine.replace("#", " ").split())
        old = _known(audit.base, path)
        before = _known(audit.before, path) if audit.before is not None else frozenset()
        for comment, anchor in _comments(audit.through, path):
            plain = " ".join(comment.replace("#", " ").split())
            if len(plain) < 20 or (comment in old and comment not in before) or anchor not in places or plain in flat:
                continue
            number = places[anchor]
            if not _rewritten(plain, lines, number):
                yield Hit(RULE, path, path, number, f"lost: {plain[:100]}", "put it back above this line")


def _rewritten(comment: str, lines: list[str], anchor: int) -> bool:
    """Whether the comment or docstring at the code says nearly the same: someone changed it, knowingly."""
    above = [line for line in lines[max(anchor - 12, 0) : anchor - 1] if line.startswith("#")]
    below = lines[anchor : anchor + 8]
    for told in (" ".join(above), *above, *below):
        plain = " ".join(told.replace("#", " ").split())
        if len(plain) > 12 and SequenceMatcher(None, comment, plain, autojunk=False).ratio() >= 0.5:
            return True
    return False


def _known(files: Files, path: str) -> frozenset[str]:
    return frozenset(comment for comment, _ in _comments(files, path)) if path in files else frozenset()


def _comments(files: Files, path: str) -> Iterator[tuple[str, str]]:
    """(block of comment lines, the code line it stands above) and (first line of a docstring, the ``def`` it belongs to)."""
    module = files.python(path)
    if module is None:
        return
    lines = files.lines(path)
    texts = [n for n in module.nodes(ast.Constant) if isinstance(n.value, str) and (n.end_lineno or 0) > n.lineno]
    inside = {number for n in texts for number in range(n.lineno + 1, (n.end_lineno or 0) + 1)}
    block: list[str] = []
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("#") and number not in inside:
            block.append(line.strip())
        elif line.strip():
            if block and len(line.strip()) >= 12:
                yield "\n".join(block), line.strip()
            block = []
    for node in module.definitions():
        told = ast.get_docstring(node)
        if told:
            yield told.split("\n")[0], lines[node.lineno - 1].strip()
