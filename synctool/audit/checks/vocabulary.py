"""Upstream's words left over."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from synctool.audit.context import Audit
from synctool.audit.finding import Edit, Hit, Rule, page
from synctool.policy.model import Flag, OwnerKind

RULE = Rule("leftover-word", "a word of upstream's is left", "it names something that does not exist here")
RULES = (RULE,)


def check(audit: Audit) -> Iterator[Hit]:
    """Lines that the sync brought, in files that are mirrored: those that came from upstream, and code that was written here.

    What stood there before is not the sync's. A sentence that somebody wrote here about upstream is meant. Flags of the engine have a check of
    their own when the engine is known.
    """
    for path in sorted(audit.changed):
        if audit.policy.owner_of(path).kind is not OwnerKind.MIRROR:
            continue
        found = audit.translator.residue(audit.tree.data(path), path)
        if not found:
            continue
        old = set(audit.before.lines(path)) if audit.before is not None and path in audit.before else set()
        theirs = set(audit.through.lines(path)) if audit.through is not None and path in audit.through else None
        prose = _prose_lines(audit, path)
        lines = audit.tree.lines(path)
        for left in found:
            line = lines[left.line - 1]
            if line in old or (audit.engine is not None and left.word.startswith("--")):
                continue
            if theirs is not None and left.line in prose and audit.translator.text(line, path) not in theirs:
                continue
            target = audit.translator.text(left.word, path)
            able = target != left.word and not isinstance(left.rule, Flag)
            report = getattr(left.rule, "report", None)
            mend = (
                f"write '{target}'" if able else report or "say it in downstream's words, or protect it in the policy"
            )
            edit = Edit(path, left.line, left.word, target) if able else None
            yield Hit(RULE, page(path), path, left.line, f"'{left.word}' is upstream's word", mend, edit)


def _prose_lines(audit: Audit, path: str) -> set[int]:
    """Lines that hold sentences: whole documents, comment lines, and texts of several lines in Python."""
    lines = audit.tree.lines(path)
    if path.endswith((".md", ".rst", ".txt")):
        return set(range(1, len(lines) + 1))
    found = {n for n, line in enumerate(lines, 1) if re.search(r"(?:^|\s)(?:#|//)\s", line)}
    module = audit.tree.python(path) if path.endswith(".py") else None
    for node in module.nodes(ast.Constant) if module is not None else ():
        if isinstance(node.value, str) and (node.end_lineno or 0) > node.lineno:
            found.update(range(node.lineno, (node.end_lineno or 0) + 1))
    return found
