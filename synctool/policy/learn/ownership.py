"""Who seems to own which path: what downstream deleted, never had, moved or added."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from synctool.policy.learn.pairs import Pairing


@dataclass(frozen=True)
class Ownership:
    """Downstream paths by what seems to have happened to them, folded into globs; each with the number of files it stands for.

    ``rewritten`` are paired files of which downstream kept next to nothing: candidates for ``port``.
    """

    deleted: tuple[tuple[str, int], ...]
    never_ported: tuple[tuple[str, int], ...]
    native: tuple[tuple[str, int], ...]
    rewritten: tuple[tuple[str, int], ...] = ()


def learn_ownership(
    pairing: Pairing,
    *,
    upstream: Iterable[str],
    downstream: Iterable[str],
    once_upstream: Iterable[str],
    once_downstream: Iterable[str],
    path: Callable[[str], str],
    rewritten: Iterable[str] = (),
) -> Ownership:
    """Sort paths by owner.

    ``upstream`` and ``downstream`` are the paths of the two trees, ``once_*`` those that the histories since the baseline ever held, and
    ``path`` maps an upstream path to downstream's.
    """
    ours = set(downstream)
    once = set(once_downstream)
    missing = {path(one): one for one in upstream if one not in pairing.pairs and path(one) not in ours}
    # A path may have been deleted under either name: before the fork renamed things, or after.
    deleted = {target for target, source in missing.items() if target in once or source in once}
    known = {path(one) for one in (*once_upstream, *upstream)} | set(pairing.pairs.values()) | set(once_upstream)
    native = ours - known
    universe = ours | set(missing)
    return Ownership(
        deleted=fold(deleted, universe),
        never_ported=fold(set(missing) - deleted, universe),
        native=fold(native, universe),
        rewritten=fold(set(rewritten), universe),
    )


def fold(chosen: set[str], universe: set[str]) -> tuple[tuple[str, int], ...]:
    """The fewest folders and files that cover exactly ``chosen`` among ``universe``, as root-anchored globs with the number of files each."""
    below: dict[str, int] = defaultdict(int)
    mine: dict[str, int] = defaultdict(int)
    for path in universe | chosen:
        for folder in _folders(path):
            below[folder] += 1
            mine[folder] += path in chosen
    result: dict[str, int] = {}
    for path in sorted(chosen):
        whole = next((folder for folder in _folders(path) if mine[folder] == below[folder] and mine[folder] > 1), None)
        glob = "/" + _escape(f"{whole}/" if whole else path)
        result[glob] = result.get(glob, 0) + 1
    return tuple(result.items())


def _folders(path: str) -> Iterable[str]:
    """The folders that a path lies in, outermost first."""
    parts = path.split("/")[:-1]
    return ("/".join(parts[: depth + 1]) for depth in range(len(parts)))


def _escape(path: str) -> str:
    """A path as a glob that matches only it."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in path)
