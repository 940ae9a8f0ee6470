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
    """The edits of upstream's and of downstream's own commits, as far as they were read, and the threads that read on."""

    upstream: Edits
    own: Edits
    readers: tuple[threading.Thread, ...] = ()

    def wait(self) -> None:
        """Wait until all is read."""
        for reader in self.readers:
            reader.join()


def read_ahead(repo: Repo, *, base: str, through: str, downstream: str) -> Readings:
    """Begin to read: the edits of upstream's changes after ``base`` (``START``: all) that downstream lacks, and of downstream's own commits.
    Returns at once. What can't be read is told by those who ask for it."""
    nothing = repo.objects.hash("tree", b"")
    upstream, own = Edits(repo), Edits(repo)

    def pairs(*arguments: str) -> list[Pair]:
        # The reader of objects serves one thread only, so rev-list itself resolves the names.
        rows = (row.split() for row in repo.text("rev-list", "--parents", *arguments, "--").splitlines())
        return [(row[1] if len(row) > 1 else nothing, row[0]) for row in rows]

    def read_upstream() -> None:
        without = [f"^{downstream}", *([] if base == START else [f"^{base}"])]
        _read(upstream, pairs("--first-parent", "--end-of-options", through, *without))

    def read_own() -> None:
        _read(own, pairs("--end-of-options", downstream, f"^{through}"))

    readers = tuple(threading.Thread(target=quietly, args=(work,), daemon=True) for work in (read_upstream, read_own))
    for reader in readers:
        reader.start()
    return Readings(upstream, own, readers)


def _read(edits: Edits, pairs: list[Pair]) -> None:
    if len(pairs) <= MOST_CHANGES:
        edits.load(pairs)
    else:
        edits.look(pairs)


def quietly(work: Callable[[], None]) -> None:
    """Do some reading, for a thread: what can't be read is told by those who ask for it again."""
    try:
        work()
    except SyncError:
        return
