"""May this candidate be built or pushed: a pure decision over recorded evidence. A refusal is a value, so that it can be recorded and told.

AMD64 comes first. ARM64 follows only on recorded green AMD64 evidence of the same tree.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from synctool.errors import Refused
from synctool.images.tags import architecture

if TYPE_CHECKING:
    from synctool.evidence.standing import Ledger

FIRST = "linux/amd64"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why not. ``rule`` is stable: ``amd64-first``, ``jump-host``, ``proxy-command``, ``host-name``, ``no-host``."""

    rule: str
    reason: str
    hint: str = ""

    def to_json(self) -> dict[str, str]:
        """For reports and records."""
        return asdict(self)

    def error(self) -> Refused:
        """The refusal as what a verb raises."""
        return Refused(self.reason, hint=self.hint or None)


def refuse_order(platform: str, seen: Ledger) -> Refusal | None:
    """Whether a platform must wait, given what is recorded, seen from the commit that is to be built.

    Green evidence of kind image or ci for linux/amd64 counts, and only with an equal tree: what was narrowed from another tree is no image of this one.
    What was withdrawn, or replaced by a later run, does not count.
    """
    architecture(platform)
    if platform == FIRST:
        return None
    tree = seen.target.tree
    if any(row.record.tree == tree and row.record.kind in ("image", "ci") for row in seen.green(platform=FIRST)):
        return None
    return Refusal(
        "amd64-first",
        f"no green {FIRST} evidence (kind image or ci) is recorded for tree {tree[:12]}, so no {platform} candidate is built",
        "run the full AMD64 suite on this very tree and record it with 'vime-sync evidence'",
    )
