"""Where a running sync lives: one commit a state, one ref that points to the newest.

A state is a commit below ``refs/vime-sync/session`` whose tree holds ``session.json`` and whose parents are the state before it and the commits it
needs. One transaction moves that ref and the sync's branch together, so a process killed at any moment leaves the state before or the state after,
never something between; undo is the parent; and no object of a session can be pruned while the session runs. The user's index, working tree
and other refs are never touched.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from filelock import FileLock, Timeout

from synctool.errors import NothingToDo, RepositoryError
from synctool.git.commits import Person, parse_commit, write_commit
from synctool.git.refs import RefUpdate, is_broken, read_ref, update_refs
from synctool.git.repo import Repo
from synctool.git.tree import Entry, Tree
from synctool.jsontext import dumps

SESSION_REF = "refs/vime-sync/session"
REDO_REF = "refs/vime-sync/redo"
STATE_FILE = "session.json"


@dataclass(frozen=True, slots=True)
class StateCommit:
    """A stored state: its commit, the state before it (None for the first), what made it, its value."""

    oid: str
    previous: str | None
    step: str
    value: dict[str, Any]

    @property
    def branch(self) -> str:
        """Full name of the branch that the sync writes."""
        return str(self.value["branch"])

    @property
    def tip(self) -> str | None:
        """Where that branch stands in this state."""
        tip = self.value["tip"]
        return str(tip) if tip else None


@contextmanager
def locked(repo: Repo) -> Iterator[None]:
    """Hold the repository's sync lock.

    Raises:
        RepositoryError: another vime-sync process holds it.
    """
    folder = repo.common_dir / "vime-sync"
    folder.mkdir(exist_ok=True)
    lock = FileLock(folder / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        hint = "wait for it; the lock goes away by itself when that process ends"
        raise RepositoryError("another vime-sync is at work here", where=str(folder / "lock"), hint=hint) from error
    try:
        yield
    finally:
        lock.release()


def damaged(what: str) -> RepositoryError:
    """The error for a stored session that no vime-sync has written."""
    return RepositoryError(
        f"the stored sync is damaged: {what}",
        where=SESSION_REF,
        hint="'vime-sync abort --force' removes the session and keeps its branch; 'git reflog' of that ref names the states before",
    )


def _read(repo: Repo, oid: str) -> StateCommit:
    try:
        commit = parse_commit(oid, repo.objects.read(oid, "commit"))
        entry = Tree(repo.objects, commit.tree).get(STATE_FILE)
    except RepositoryError as error:
        raise damaged(error.title) from error
    if entry is None:
        raise RepositoryError(
            f"{SESSION_REF} points to {oid[:12]}, which is not a sync state",
            hint="'vime-sync abort --force' removes it",
        )
    try:
        value = json.loads(repo.objects.read(entry.oid, "blob"))
    except RepositoryError as error:
        raise damaged(error.title) from error
    except ValueError as error:
        raise damaged(f"no JSON: {error}") from error
    if not isinstance(value, dict):
        raise damaged("no JSON object")
    if value.get("schema") != 1:
        raise RepositoryError(
            f"the running sync was started by another version (state schema {value.get('schema')})",
            hint="finish it with that version",
        )
    depth = value.get("depth")
    if not all(isinstance(value.get(name), str) for name in ("branch", "tip", "phase")) or "branch_before" not in value:
        raise damaged("its branch, tip or phase is missing")
    if not isinstance(depth, int) or (depth and not commit.parents):
        raise damaged("the state before it is missing")
    previous = commit.parents[0] if depth else None
    return StateCommit(oid, previous, commit.subject, value)


def load(repo: Repo) -> StateCommit | None:
    """The newest state, or None when no sync runs (or a finished one was cleared).

    Raises:
        RepositoryError: what is stored there can't be read.
    """
    oid = read_ref(repo, SESSION_REF)
    if (oid is None and is_broken(repo, SESSION_REF)) or is_broken(repo, REDO_REF):
        raise damaged("a ref of it holds no commit id")
    return _read(repo, oid) if oid else None


def require(repo: Repo, *, running: bool = True) -> StateCommit:
    """The newest state.

    Raises:
        RepositoryError: no sync runs here, or (with ``running``) it has finished.
    """
    state = load(repo)
    if state is None or (running and state.value["phase"] == "finished"):
        raise RepositoryError(
            "no sync is running here", where=str(repo.git_dir), hint="start one with 'vime-sync mirror --through SHA'"
        )
    return state


def checked_out_at(repo: Repo, branch: str) -> str | None:
    """The work tree that has a branch checked out, or None. Moving such a branch would leave its files behind."""
    for block in repo.text("worktree", "list", "--porcelain").split("\n\n"):
        lines = block.splitlines()
        if f"branch {branch}" in lines and "bare" not in lines:
            return lines[0].removeprefix("worktree ")
    return None


def save(
    repo: Repo,
    value: dict[str, Any],
    step: str,
    *,
    needs: list[str],
    previous: StateCommit | None,
    held: Mapping[str, Entry] | None = None,
) -> StateCommit:
    """Store the next state and move the sync's branch to ``value['tip']``, in one transaction.

    ``needs`` are commits and ``held`` files that the state refers to, which must outlive pruning. Redo is cleared.

    Raises:
        RepositoryError: the branch was moved by someone else, or is checked out.
    """
    value = {**value, "schema": 1, "depth": 0 if previous is None else int(previous.value["depth"]) + 1}
    tree = Tree(repo.objects)
    data = dumps(value, indent=1, sort_keys=True).encode()
    tree.set(STATE_FILE, Entry("100644", repo.objects.write_blob(data)))
    for path, entry in (held or {}).items():
        tree.set(path, entry)
    parents = ([previous.oid] if previous else []) + list(dict.fromkeys(needs))
    person = Person.now("vime-sync", "vime-sync@localhost")
    oid = write_commit(repo.objects, tree=tree.write(), parents=parents, author=person, committer=person, message=step)
    state = StateCommit(oid, previous.oid if previous else None, step, value)
    updates = [RefUpdate(SESSION_REF, oid, previous.oid if previous else None)]
    redo = read_ref(repo, REDO_REF)
    if redo:
        updates.append(RefUpdate(REDO_REF, None, redo))
    updates += _branch_move(repo, state.branch, previous.tip if previous else value["branch_before"], state.tip)
    update_refs(repo, updates, step)
    return state


def _branch_move(repo: Repo, branch: str, old: str | None, new: str | None) -> list[RefUpdate]:
    if old == new:
        return []
    where = checked_out_at(repo, branch)
    if where is not None:
        raise RepositoryError(
            f"{branch.removeprefix('refs/heads/')} is checked out and would move",
            where=where,
            hint="switch that work tree to another branch, or commit your edits there and run 'vime-sync continue'",
        )
    name = branch.removeprefix("refs/heads/")
    if old is not None and read_ref(repo, branch) is None:
        raise RepositoryError(
            f"the sync's branch {name} was deleted or renamed",
            where=branch,
            hint=f"'git branch {name} {old}' restores it; 'vime-sync abort' ends the sync",
        )
    return [RefUpdate(branch, new, old)]


def undo(repo: Repo) -> tuple[StateCommit, StateCommit | None]:
    """Go back one step; returns the state left and the state reached (None: before the sync began).

    Raises:
        NothingToDo: there is no step to take back.
    """
    now = load(repo)
    if now is None:
        raise NothingToDo("there is no step to undo")
    back = _read(repo, now.previous) if now.previous else None
    updates = [RefUpdate(SESSION_REF, now.previous, now.oid)]
    if read_ref(repo, REDO_REF) is None:  # it names the newest undone state; the others are its ancestors
        updates.append(RefUpdate(REDO_REF, now.oid, None))
    updates += _branch_move(repo, now.branch, now.tip, back.tip if back else now.value["branch_before"])
    update_refs(repo, updates, f"undo: {now.step}")
    return now, back


def redo(repo: Repo, *, dry_run: bool = False) -> StateCommit:
    """Do the last undone step again.

    Raises:
        NothingToDo: nothing was undone since the last step.
    """
    oid = read_ref(repo, REDO_REF)
    now = load(repo)
    if oid is None:
        raise NothingToDo("there is no step to redo")
    # REDO_REF names the newest undone state; the one to redo is its ancestor that directly follows the current state.
    chain = [_read(repo, oid)]
    here = now.oid if now else None
    while chain[-1].previous != here:
        if chain[-1].previous is None:
            raise NothingToDo("there is no step to redo: the sync went on in another way")
        chain.append(_read(repo, chain[-1].previous))
    target = chain[-1]
    if dry_run:
        return target
    updates = [RefUpdate(SESSION_REF, target.oid, here)]
    if target.oid == oid:
        updates.append(RefUpdate(REDO_REF, None, oid))
    old = now.tip if now else target.value["branch_before"]
    updates += _branch_move(repo, target.branch, old, target.tip)
    update_refs(repo, updates, f"redo: {target.step}")
    return target


def clear(repo: Repo, *, restore_branch: bool) -> StateCommit | None:
    """End the session: remove its refs and, with ``restore_branch``, put its branch back to where it was (or away)."""
    oid = read_ref(repo, SESSION_REF)
    if oid is None:
        return None
    state = _read(repo, oid)
    updates = [RefUpdate(SESSION_REF, None, oid)]
    redo_oid = read_ref(repo, REDO_REF)
    if redo_oid:
        updates.append(RefUpdate(REDO_REF, None, redo_oid))
    if restore_branch:
        actual = read_ref(repo, state.branch)
        if actual != state.value["branch_before"]:
            updates += _branch_move(repo, state.branch, actual, state.value["branch_before"])
    update_refs(repo, updates, "abort" if restore_branch else "clear")
    return state


def who(repo: Repo) -> tuple[str, str]:
    """Name and mail of the person at work: the usual git variables, then the repository's and the user's configuration.

    This is the one fact that is read from the user's own git configuration.
    """
    import git

    name, email = os.environ.get("GIT_COMMITTER_NAME"), os.environ.get("GIT_COMMITTER_EMAIL")
    if name and email:
        return name, email
    opened = git.Repo(str(repo.git_dir))
    try:
        with opened.config_reader() as reader:
            return (
                str(name or reader.get_value("user", "name", "vime-sync")),
                str(email or reader.get_value("user", "email", "vime-sync@localhost")),
            )
    finally:
        opened.close()
