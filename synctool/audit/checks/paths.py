"""Every path that upstream's range touched, accounted for."""

from __future__ import annotations

from collections.abc import Iterator

from synctool.audit.context import Audit
from synctool.audit.finding import Hit, Rule
from synctool.policy.model import OwnerKind

MISSING = Rule(
    "unaccounted-path",
    "an upstream path of the range is not here, and nothing says why",
    "a part of the change is missing",
)
STAYED = Rule(
    "undeleted-path", "a file that upstream deleted in the range is still here", "it is dead, or a test of it fails"
)
RULES = (MISSING, STAYED)


def check(audit: Audit) -> Iterator[Hit]:
    """A path is accounted for when it is here, when the policy or a manifest leaves it out, or when downstream had none of it before the range either."""
    if audit.base is None or audit.through is None:
        return
    for change in audit.range_changes:
        path = audit.translator.path(change.path)
        if change.mode in ("120000", "160000") or change.old_mode in ("120000", "160000"):
            continue
        if audit.policy.owner_of(path).kind is not OwnerKind.MIRROR or path in audit.recorded:
            continue
        if change.status == "D":
            if path in audit.tree and path not in audit.through:
                same = audit.base.data(path) == audit.tree.data(path)
                told = "unchanged" if same else "changed"
                yield Hit(
                    STAYED,
                    path,
                    path,
                    0,
                    f"upstream deleted it; it is here, {told}",
                    "delete it, or make it native in the policy with a reason",
                )
        elif path not in audit.tree and _expected(audit, path, change.status):
            yield Hit(
                MISSING,
                path,
                path,
                0,
                f"upstream {'added' if change.status == 'A' else 'changed'} {change.path}, which has no place here",
                "mirror it, or exclude it in the policy with a reason",
            )


def _expected(audit: Audit, path: str, status: str) -> bool:
    """Whether the path should be here: new upstream, or here before. Next to others that downstream has: a folder that it dropped stays dropped."""
    if audit.before is not None and path in audit.before:
        return True
    folder = path.rpartition("/")[0]
    return status == "A" and (
        not folder.count("/") or any(other.startswith(f"{folder}/") for other in audit.tree.entries)
    )
