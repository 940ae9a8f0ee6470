"""Where the last sync ended: the base of the next one, and where that is recorded.

In order: a manifest in downstream's tree, trailers in downstream's history, the policy's baseline, the fork point. A manifest or trailer of a sync that was
reverted is not there, or does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from synctool.errors import RepositoryError, UsageError
from synctool.git.commits import Commit
from synctool.git.repo import Repo
from synctool.plan.history import History
from synctool.plan.manifest import Manifest
from synctool.plan.model import Kind
from synctool.plan.span import require_ancestor


class Start(NamedTuple):
    """A base, in words where it came from, and remarks."""

    base: str
    source: str
    warnings: tuple[str, ...] = ()


def find_start(
    repo: Repo,
    history: History,
    manifests: Iterable[Manifest],
    *,
    downstream: str,
    through: str,
    baseline: str | None,
    left_out: Callable[[str], bool] = lambda oid: False,
) -> Start:
    """The base of a range that ends at ``through`` (full id). ``left_out`` says whether policy excludes an upstream commit, so that it has no trailer.

    Raises:
        RepositoryError: the last sync ended at a commit that upstream no longer has.
        UsageError: nothing is recorded and the histories share no commit.
    """
    chain = repo.text("rev-list", "--first-parent", "--reverse", through, "--").split()
    place = {oid: n for n, oid in enumerate(chain)}
    known_manifests = [manifest for manifest in manifests if not manifest.picks]
    _refuse_lost(repo, known_manifests, place, downstream, through)
    start = _from_manifests(known_manifests, chain, place)
    if start is None and baseline is not None and (found := repo.resolve(baseline)) is not None:
        start = Start(found, "the policy's upstream.baseline")
    if start is None:
        finished = repo.run("merge-base", downstream, through, check=False)
        if finished.returncode == 0:
            start = Start(
                finished.stdout.decode().strip(), "the fork point: the newest commit that both histories contain"
            )
    recorded = sorted(n for key in history.by_commit if (n := _place_of(key, place)) is not None)
    floor = place.get(start.base, -1) if start is not None else (recorded[0] - 1 if recorded else -1)
    known = set(recorded)
    reached = floor
    for n in range(floor + 1, len(chain)):
        if n in known:
            reached = n
        elif not left_out(chain[n]):
            break
    warnings = start.warnings if start else ()
    ahead = [n for n in recorded if n > reached]
    if ahead:
        warnings += (
            f"{len(ahead)} change(s) after the resume point are recorded as mirrored already, up to {chain[ahead[-1]][:9]}",
        )
    if reached > floor:
        record = history.recorded(chain[reached], None)
        where = f" of {record.downstream[:9]}" if record else ""
        return Start(chain[reached], f"the Upstream-Commit trailer{where}", warnings)
    if start is None:
        raise UsageError(
            "no earlier sync is recorded, and the two histories share no commit", hint="say where to begin: --from SHA"
        )
    return start._replace(warnings=warnings)


def _place_of(key: str, place: dict[str, int]) -> int | None:
    if key in place:
        return place[key]
    return next((n for oid, n in place.items() if oid.startswith(key)), None)


def _refuse_lost(
    repo: Repo, manifests: Sequence[Manifest], place: dict[str, int], downstream: str, through: str
) -> None:
    """Refuse to go on when the last sync ended at a commit that upstream no longer has.

    Only the last one counts: after a rewrite that was dealt with, older manifests still name lost commits.
    """
    # In the order of descent: by date a commit of a slow clock would come before those that it was made on.
    commits = repo.text("rev-list", "--topo-order", "--reverse", downstream, "--").split() if manifests else []
    order = {oid: n for n, oid in enumerate(commits)}
    dated = [(order[m.downstream], m) for m in manifests if m.downstream in order]
    if not dated:
        return
    last = max(dated, key=lambda pair: pair[0])[1]
    if _place_of(last.through, place) is not None:
        return
    try:
        end = repo.resolve(last.through)
    except RepositoryError:
        raise RepositoryError(
            f"the last sync ended at {last.through[:9]}, which is not in this repository",
            where=last.file,
            hint="fetch upstream; if it rewrote its history, plan with --from the newest commit that both have",
        ) from None
    if not repo.is_ancestor(through, end):
        require_ancestor(repo, end, through)


def _from_manifests(manifests: Sequence[Manifest], chain: Sequence[str], place: dict[str, int]) -> Start | None:
    found = [(at, manifest) for manifest in manifests if (at := _place_of(manifest.through, place)) is not None]
    if not found:
        return None
    at, newest = max(found, key=lambda pair: pair[0])
    deferred = [e.commit[:9] if e.pr is None else f"#{e.pr}" for e in newest.entries if e.decision is Kind.DEFER]
    warnings = (f"deferred in {newest.file}: {', '.join(deferred)}; take them with --pr or --pick",) if deferred else ()
    return Start(chain[at], f"the manifest {newest.file}", warnings)


def claimed_start(history: History, commits: Iterable[Commit], number_of: Callable[[Commit], int | None]) -> str | None:
    """A remark when downstream's prose names an upstream change that is newer than the recorded start; None when it does not."""
    newest = None
    for commit in commits:
        number = number_of(commit)
        if number is not None and number in history.claims:
            newest = commit, number
    if newest is None:
        return None
    commit, number = newest
    where = history.claims[number][-1][:9]
    return f"downstream's {where} mentions #{number} ({commit.oid[:9]}): if all up to it was synced, plan with --from {commit.oid[:9]}"
