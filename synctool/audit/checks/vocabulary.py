"""Upstream's words left over."""

from __future__ import annotations

from collections.abc import Iterator

from synctool.audit.context import Audit
from synctool.audit.finding import Edit, Hit, Rule, page
from synctool.policy.model import Flag, OwnerKind

RULE = Rule("leftover-word", "a word of upstream's is left", "it names something that does not exist here")
RULES = (RULE,)


def check(audit: Audit) -> Iterator[Hit]:
    """Lines that the sync brought, in files that are mirrored. What stood there before is the translation's business, not the sync's."""
    for path in sorted(audit.changed):
        if audit.policy.owner_of(path).kind is not OwnerKind.MIRROR:
            continue
        found = audit.translator.residue(audit.tree.data(path), path)
        if not found:
            continue
        old = set(audit.before.lines(path)) if audit.before is not None and path in audit.before else set()
        lines = audit.tree.lines(path)
        for left in found:
            line = lines[left.line - 1]
            if line in old:
                continue
            target = audit.translator.text(left.word, path)
            able = target != left.word and not isinstance(left.rule, Flag)
            mend = (
                f"write '{target}'"
                if able
                else getattr(left.rule, "report", None) or "say it in downstream's words, or protect it in the policy"
            )
            edit = Edit(path, left.line, left.word, target) if able else None
            yield Hit(RULE, page(path), path, left.line, f"'{left.word}' is upstream's word", mend, edit)
