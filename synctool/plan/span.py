"""The range: resolving its ends, refusing a rewritten upstream, listing its first-parent changes oldest first."""

from __future__ import annotations

from collections.abc import Sequence

from synctool.errors import RepositoryError, UsageError
from synctool.git.commits import first_parent_range, read_commits
from synctool.git.repo import Repo
from synctool.plan.model import Change

#: How many lost changes an error names.
SHOWN = 3


def empty_tree(repo: Repo) -> str:
    """The id of the empty tree: what the first commit of a history is compared to."""
    return repo.objects.hash("tree", b"")


def changes_between(repo: Repo, base: str | None, through: str) -> list[Change]:
    """First-parent changes of ``base..through`` (full ids), oldest first.

    Raises:
        RepositoryError: ``base`` is not an ancestor of ``through``; the hint names the merge base and what was lost.
        UsageError: the ends are the wrong way round.
    """
    if base is not None:
        require_ancestor(repo, base, through)
    nothing = empty_tree(repo)
    return [
        Change(commit, commit.parents[0] if commit.parents else nothing)
        for commit in first_parent_range(repo, base, through)
    ]


def require_ancestor(repo: Repo, base: str, through: str) -> None:
    """Refuse a base that ``through`` does not contain.

    Raises:
        RepositoryError: upstream's history was rewritten, or the two are unrelated.
        UsageError: ``through`` is older than ``base``.
    """
    if base == through or repo.is_ancestor(base, through):
        return
    if repo.is_ancestor(through, base):
        raise UsageError(f"--through {through[:9]} is older than --from {base[:9]}", hint="swap the two")
    found = repo.run("merge-base", base, through, check=False)
    if found.returncode:
        hint = (
            "this clone is shallow: fetch full history"
            if repo.is_shallow
            else "they share no commit: is this the right upstream?"
        )
        raise RepositoryError(
            f"{base[:9]} and {through[:9]} have no common history", where=str(repo.git_dir), hint=hint
        )
    fork = found.stdout.decode().strip()
    lost = first_parent_range(repo, fork, base)
    names = "; ".join(f"{c.oid[:9]} {c.subject}" for c in lost[:SHOWN])
    more = f"; and {len(lost) - SHOWN} more" if len(lost) > SHOWN else ""
    raise RepositoryError(
        f"upstream's history was rewritten: {base[:9]} is no ancestor of {through[:9]}",
        where=str(repo.git_dir),
        hint=f"they part at {fork[:9]}; {len(lost)} change(s) after it are gone from upstream ({names}{more}); "
        f"check them, then plan with --from {fork[:9]}",
    )


def on_first_parent_chain(changes: Sequence[Change], base: str | None) -> bool:
    """Whether the oldest change sits right on ``base``. If not, ``base`` came in by a merge, and that merge is in the range whole."""
    return base is None or not changes or changes[0].parent == base


def picked_changes(repo: Repo, oids: Sequence[str]) -> list[Change]:
    """Single commits as changes, in history order (ancestors first)."""
    if not oids:
        return []
    order = repo.text("rev-list", "--topo-order", "--reverse", "--no-walk=sorted", *oids, "--").split()
    nothing = empty_tree(repo)
    # --no-walk does not sort topologically by itself: commits of one second may come out either way.
    ranked = sorted(order, key=lambda oid: sum(1 for other in order if other != oid and repo.is_ancestor(other, oid)))
    return [Change(c, c.parents[0] if c.parents else nothing) for c in read_commits(repo.objects, ranked)]
