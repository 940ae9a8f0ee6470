"""Session states: one atomic step each, undo and redo, nothing of the user's touched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from synctool.errors import NothingToDo, RepositoryError
from synctool.git import Repo
from synctool.git.refs import read_ref
from synctool.mirror import store

BRANCH = "refs/heads/sync/x"


def git(folder: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=A", "-c", "user.email=a@x", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, check=True, text=True).stdout.strip()


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    git(tmp_path, "init", "-q", "-b", "main")
    for number in range(4):
        git(tmp_path, "commit", "-q", "--allow-empty", "-m", str(number))
    return Repo.open(tmp_path)


def commits(repo: Repo) -> list[str]:
    return repo.text("rev-list", "--reverse", "main").split()


def value(tip: str | None, before: str | None = None, phase: str = "conflicts") -> dict[str, object]:
    return {"branch": BRANCH, "branch_before": before, "tip": tip, "phase": phase}


def test_steps_undo_and_redo_move_session_and_branch_together(repo: Repo) -> None:
    ids = commits(repo)
    one = store.save(repo, value(ids[1]), "start", needs=[ids[1]], previous=None)
    two = store.save(repo, value(ids[2]), "take a", needs=[ids[2]], previous=one)
    three = store.save(repo, value(ids[3]), "take b", needs=[ids[3]], previous=two)
    assert read_ref(repo, BRANCH) == ids[3]

    assert store.undo(repo)[1] == two
    assert read_ref(repo, BRANCH) == ids[2]
    assert store.undo(repo)[1] == one
    assert store.undo(repo)[1] is None
    assert read_ref(repo, BRANCH) is None
    with pytest.raises(NothingToDo):
        store.undo(repo)

    assert [store.redo(repo).oid for _ in range(3)] == [one.oid, two.oid, three.oid]
    assert read_ref(repo, BRANCH) == ids[3]
    with pytest.raises(NothingToDo):
        store.redo(repo)


def test_a_new_step_ends_redo(repo: Repo) -> None:
    ids = commits(repo)
    one = store.save(repo, value(ids[1]), "start", needs=[], previous=None)
    store.save(repo, value(ids[2]), "take a", needs=[], previous=one)
    store.undo(repo)
    store.save(repo, value(ids[3]), "take b", needs=[], previous=one)
    with pytest.raises(NothingToDo):
        store.redo(repo)


def test_abort_restores_a_branch_that_was_there(repo: Repo, tmp_path: Path) -> None:
    ids = commits(repo)
    git(tmp_path, "update-ref", BRANCH, ids[0])
    before = git(tmp_path, "for-each-ref")
    with pytest.raises(RepositoryError, match="refs were not updated"):
        store.save(repo, value(ids[1]), "start", needs=[], previous=None)
    assert git(tmp_path, "for-each-ref") == before
    one = store.save(repo, value(ids[1], before=ids[0]), "start", needs=[], previous=None)
    store.save(repo, value(ids[2], before=ids[0]), "take", needs=[], previous=one)
    store.clear(repo, restore_branch=True)
    assert git(tmp_path, "for-each-ref") == before


def test_states_survive_pruning(repo: Repo, tmp_path: Path) -> None:
    dangling = git(tmp_path, "commit-tree", "HEAD^{tree}", "-m", "only the session needs it")
    store.save(repo, value(dangling), "start", needs=[dangling], previous=None)
    git(tmp_path, "update-ref", "-d", BRANCH)
    git(tmp_path, "reflog", "expire", "--expire=now", "--all")
    git(tmp_path, "gc", "-q", "--prune=now")
    assert git(tmp_path, "cat-file", "-t", dangling) == "commit"
    state = store.load(Repo.open(tmp_path))
    assert state is not None
    assert state.tip == dangling


def test_a_branch_that_someone_moved_is_not_overwritten(repo: Repo, tmp_path: Path) -> None:
    ids = commits(repo)
    one = store.save(repo, value(ids[1]), "start", needs=[], previous=None)
    git(tmp_path, "update-ref", BRANCH, ids[3])
    with pytest.raises(RepositoryError, match="refs were not updated"):
        store.save(repo, value(ids[2]), "take", needs=[], previous=one)
    assert store.require(repo).oid == one.oid
    assert read_ref(repo, BRANCH) == ids[3]


def test_a_checked_out_branch_does_not_move(repo: Repo, tmp_path: Path) -> None:
    ids = commits(repo)
    one = store.save(repo, value(ids[1]), "start", needs=[], previous=None)
    git(tmp_path, "checkout", "-q", "sync/x")
    with pytest.raises(RepositoryError, match="checked out"):
        store.save(repo, value(ids[2]), "take", needs=[], previous=one)


def test_the_lock_names_the_other_process(repo: Repo, tmp_path: Path) -> None:
    script = (
        "import sys; from synctool.git import Repo; from synctool.mirror import store\n"
        f"with store.locked(Repo.open({str(tmp_path)!r})):\n print('held', flush=True); sys.stdin.read()\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(RepositoryError, match="another vime-sync"), store.locked(repo):
        pass
    holder.kill()
    holder.wait()
    with store.locked(repo):
        pass


def test_without_a_session_the_hint_says_how_to_start(repo: Repo) -> None:
    assert store.load(repo) is None
    with pytest.raises(RepositoryError) as caught:
        store.require(repo)
    assert "vime-sync mirror" in (caught.value.hint or "")
