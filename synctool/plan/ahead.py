"""Reading ahead: git reads what a plan will ask of the two histories while the policy is loaded, which takes as long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from synctool.errors import SyncError
from synctool.git.repo import Repo
from synctool.plan.hunks import Edits, Pair

#: ``base`` for a plan from upstream's first commit on.
START = "start"
#: Hunks are read ahead of at most so many changes. Of more it had better be known first which of them matter.
MOST_CHANGES = 500


class Readings(NamedTuple):
    """The edits of upstream's and of downstream's own commits, as far as they were read."""

    upstream: Edits
    own: Edits


def read_ahead(repo: Repo, *, base: str, through: str, downstream: str) -> Readings:
    """Begin to read: the edits of upstream's changes after ``base`` (``START``: all) that downstream lacks, and which paths downstream's own commits
    change. Returns at once. What can't be read is told by those who ask for it."""
    nothing = repo.objects.hash("tree", b"")
    made = Readings(Edits(repo), Edits(repo))

    def pairs(*arguments: str) -> list[Pair]:
        # The reader of objects serves one thread only, so rev-list itself resolves the names.
        rows = (row.split() for row in repo.text("rev-list", "--parents", *arguments, "--").splitlines())
        return [(row[1] if len(row) > 1 else nothing, row[0]) for row in rows]

    def read_upstream() -> None:
        without = [f"^{downstream}", *([] if base == START else [f"^{base}"])]
        wanted = pairs("--first-parent", "--end-of-options", through, *without)
        read = made.upstream.load if len(wanted) <= MOST_CHANGES else made.upstream.look
        read(wanted)

    def read_own() -> None:
        made.own.look(pairs("--end-of-options", downstream, f"^{through}"))

    for work in (read_upstream, read_own):
        threading.Thread(target=_quietly, args=(work,), daemon=True).start()
    return made


def _quietly(work: Callable[[], None]) -> None:
    try:
        work()
    except SyncError:
        return
