"""SIGKILL at every step boundary of every verb that writes.

What is there afterwards is the state before or the state after, and the sync goes on from it or goes away without a trace.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from synctool.git import Repo
from synctool.mirror import store
from tests.e2e.sync import killed
from tests.e2e.sync.conftest import Fork
from tests.preloaded import call

KILLED = -9
#: verb under test, and the verbs that lead up to it
CASES = {
    "mirror": (["mirror"], []),
    "squash": (["mirror", "--squash"], []),
    "take": (["take", "theirs", "--all"], [["mirror"]]),
    "skip": (["skip", "#113", "--reason", "none"], [["mirror"]]),
    "continue": (["continue"], [["mirror"], ["take", "theirs", "--all"]]),
    "undo": (["undo"], [["mirror"], ["take", "theirs", "--all"]]),
    "redo": (["redo"], [["mirror"], ["take", "theirs", "--all"], ["undo"]]),
    "abort": (["abort"], [["mirror"], ["take", "theirs", "--all"]]),
}


def visible(fork: Fork) -> str:
    """Refs but for those that only name steps of the session, whose ids hold the time."""
    return "\n".join(row for row in fork.refs().splitlines() if "refs/heads/main" in row or "upstream" in row)


def session(fork: Fork) -> dict[str, Any] | None:
    """The stored session, read in this process: many are read."""
    repo = Repo.open(fork.folder)
    state = store.load(repo)
    repo.close()
    return state.value if state else None


@pytest.mark.parametrize("name", CASES)
def test_killed_at_each_boundary(fork: Fork, tmp_path: Path, name: str) -> None:
    words, before = CASES[name]
    for step in before:
        fork.sync(*step, expect=None)
    untouched = fork.snapshot()
    start = fork.refs()
    status = session(fork)
    end: Fork | None = None
    deaths = 0
    for boundary in range(1, 200):
        copy = Fork(tmp_path / f"at{boundary}", fork.upstream)
        shutil.copytree(fork.folder, copy.folder, symlinks=True)
        done = call(str(boundary), *words, "-C", str(copy.folder), function=killed.main)
        if done.returncode == 77:
            end = copy
            break
        assert done.returncode == KILLED, (done.returncode, done.stderr)
        deaths += 1
        # the work tree, the index, HEAD and the user's refs never moved
        assert visible(copy) == visible(fork)
        now = session(copy)
        assert copy.git("fsck", "--connectivity-only", "--no-dangling") in (
            "",
            "notice: HEAD points to an unborn branch (main)",
        )
        if now == status:
            assert copy.refs() == start, "the state before, to the byte"
            copy.sync(*words, expect=None)
            assert session(copy) != status
        store.clear(Repo.open(copy.folder), restore_branch=True)
        assert "refs/heads/sync/" not in copy.refs()
        assert "refs/vime-sync/session" not in copy.refs()
        shutil.rmtree(copy.folder)
    assert end is not None, "the verb never ended"
    assert deaths >= 2
    assert fork.snapshot() == untouched
