"""Shares records with a remote: what it has comes here, what is here goes there. The union of two sets is the merge, so nobody's records are lost."""

from __future__ import annotations

from dataclasses import dataclass

from synctool.errors import RepositoryError
from synctool.evidence.store import ATTEMPTS, REF, add, load, signed_commit
from synctool.git.refs import RefUpdate, read_ref, update_refs
from synctool.git.remote import push_ref, remote_ref
from synctool.git.repo import Repo


@dataclass(frozen=True, slots=True)
class Shared:
    """How many facts came from the remote, how many went there, and the commit that both have now (None: there are none)."""

    received: int
    sent: int
    tip: str | None


def share(repo: Repo, remote: str, who: tuple[str, str]) -> Shared:
    """Bring ``refs/vime-sync/evidence`` of this repository and of a remote to the same set. Nothing is overwritten there.

    Raises:
        EnvironmentFailure: the remote can't be reached, or does not take the ref.
        RepositoryError: the remote kept moving.
        ConfigError: what the remote keeps there are no records.
    """
    received = 0
    for _ in range(ATTEMPTS):
        there, mine = remote_ref(repo, remote, REF), read_ref(repo, REF)
        if mine == there:
            return Shared(received, 0, mine)
        theirs = load(repo, there).facts if there else ()
        if there is not None and (mine is None or repo.is_ancestor(mine, there)):
            received += len(theirs) - len(load(repo).facts)
            update_refs(repo, [RefUpdate(REF, there, mine)], f"records of {remote}")
            return Shared(received, 0, there)
        received += len(add(repo, theirs, who, f"records of {remote}"))
        mine = str(read_ref(repo, REF))
        if there is not None and not repo.is_ancestor(there, mine):
            mine = _joined(repo, mine, there, who, remote)
        if push_ref(repo, remote, mine, REF):
            return Shared(received, len(load(repo, mine).facts) - len(theirs), mine)
    raise RepositoryError(f"{REF} of {remote} kept moving", hint="run again")


def _joined(repo: Repo, mine: str, there: str, who: tuple[str, str], remote: str) -> str:
    """A commit that follows both; its tree is ours, which holds theirs already."""
    joined = signed_commit(repo, repo.resolve(mine, "tree"), [mine, there], who, f"Join the records of {remote}")
    update_refs(repo, [RefUpdate(REF, joined, mine)], f"records of {remote}")
    return joined
