"""Everything that a pull request may say, read from one head: its tree holds manifest, policy and patches; the evidence ref holds what was seen."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath

from synctool.errors import ConfigError, RepositoryError, UsageError
from synctool.evidence.standing import Ledger, Target, assess
from synctool.evidence.store import Evidence, load
from synctool.git.diff import PathChange, commit_diffs, tree_diff
from synctool.git.repo import Repo
from synctool.patches.stack import Stack, load_stack
from synctool.plan.history import read_history
from synctool.plan.manifest import FOLDER, Manifest, read_manifest, recorded_manifests
from synctool.plan.model import Kind
from synctool.policy.loading import POLICY_FILE, parse_policy
from synctool.policy.model import OwnerKind, Policy
from synctool.translate.translator import Translator

#: Patch stacks lie in ``patches/PACKAGE/VERSION/``; a file of one is text that people read.
STACKS, MAX_STACK_FILE = "patches", 8 << 20


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An upstream path of the range that policy keeps out, with its reason. ``path`` is downstream's name for it."""

    path: str
    owner: str
    reason: str


@dataclass(frozen=True)
class Facts:
    """What is known about one head."""

    target: Target
    policy: Policy
    manifest: Manifest | None
    stack: Stack | None
    ledger: Ledger
    #: ``status letter -> count`` of paths changed since the base, and the same for each top folder.
    changed: dict[str, int]
    folders: dict[str, int]
    left_out: tuple[LeftOut, ...] = ()
    #: ``upstream id -> commit here``, as trailers of the commits since the base tell: a change that waited for a conflict landed with its resolution,
    #: in the very commit that holds the manifest, which therefore can't name it.
    landed: dict[str, str] = field(default_factory=dict)


def gather(
    repo: Repo,
    *,
    revision: str = "HEAD",
    policy: Policy | None = None,
    manifest_file: Path | None = None,
    base: str | None = None,
    evidence: Evidence | None = None,
    sync: str | None = None,
) -> Facts:
    """Read the facts of a revision. Without ``policy`` and ``manifest_file`` both come out of its tree. ``sync`` limits evidence to one sync.

    Raises:
        RepositoryError: a revision is missing.
        ConfigError: policy, manifest, stack or a record is wrong, or there is no policy.
        UsageError: the tree holds several manifests that fit and none was named.
    """
    head = repo.resolve(revision)
    tree = repo.tree(head)
    if policy is None:
        entry = tree.get(POLICY_FILE)
        if entry is None:
            raise ConfigError(
                "no policy in the tree", where=f"{head[:9]}:{POLICY_FILE}", hint="commit it, or name one with --policy"
            )
        policy = parse_policy(
            repo.objects.read(entry.oid, "blob").decode("utf-8", "replace"), f"{head[:9]}:{POLICY_FILE}"
        )
    manifest = _manifest(repo, head, manifest_file)
    started = base or (manifest.downstream if manifest else None)
    target = Target(head, repo.resolve(head, "tree"), _resolved(repo, started) if started else None)
    changes = tree_diff(repo, target.base, head) if target.base else []
    ledger = ledger_for(repo, target, policy, evidence if evidence is not None else load(repo))
    return Facts(
        target,
        policy,
        manifest,
        stack_of(repo, head),
        ledger.of_sync(sync) if sync else ledger,
        dict(Counter(change.status[0] for change in changes)),
        dict(Counter(change.path.partition("/")[0] if "/" in change.path else "." for change in changes)),
        tuple(_left_out(repo, policy, manifest)) if manifest else (),
        _landed(repo, target, manifest) if manifest else {},
    )


def _landed(repo: Repo, target: Target, manifest: Manifest) -> dict[str, str]:
    """By the reader that plans go by: trailers of squash merges count, syncs that were taken back do not."""
    if target.base is None:
        return {}
    history = read_history(repo, target.head, target.base)
    found = {entry.commit: history.recorded(entry.commit, None) for entry in manifest.entries}
    return {commit: record.downstream for commit, record in found.items() if record is not None}


def ledger_for(repo: Repo, target: Target, policy: Policy, evidence: Evidence) -> Ledger:
    """The evidence of a repository, seen from a target."""

    @cache
    def delta(tree: str) -> Sequence[str] | None:
        if repo.objects.info(tree) is None:
            return None
        return tuple(change.path for change in tree_diff(repo, tree, target.tree))

    def is_ancestor(ancestor: str, descendant: str) -> bool:
        return repo.objects.info(ancestor) is not None and repo.is_ancestor(ancestor, descendant)

    return assess(evidence.records, evidence.statements, target, delta, policy.neutrals, is_ancestor)


def _resolved(repo: Repo, revision: str) -> str | None:
    try:
        return repo.resolve(revision)
    except RepositoryError:
        return None  # the manifest may name a commit that only its writer had


def _manifest(repo: Repo, head: str, given: Path | None) -> Manifest | None:
    if given is not None:
        return read_manifest(given)
    found = list(recorded_manifests(repo, repo.tree(head)))
    if len(found) < 2:
        return found[0] if found else None
    # Earlier syncs left theirs: the one of this sync came with the newest commit that touched the folder.
    names = repo.text("log", "-1", "--format=", "--name-only", "--diff-filter=AM", head, "--", f"{FOLDER}/").split("\n")
    fitting = [manifest for manifest in found if manifest.file in names]
    if len(fitting) != 1:
        raise UsageError(f"{len(found)} manifests are in this tree", hint=f"name one: --manifest {found[-1].file}")
    return fitting[0]


def stack_of(repo: Repo, revision: str) -> Stack | None:
    """The patch stack that a tree holds (``patches/PACKAGE/VERSION/``), None when there is none or several.

    Raises:
        ConfigError: it is wrong.
    """
    tree = repo.tree(revision)
    pins = [path for path, _ in tree.items(STACKS) if path.count("/") == 3 and path.endswith("/pin.toml")]
    if len(pins) != 1:
        return None
    folder = str(PurePosixPath(pins[0]).parent)
    with tempfile.TemporaryDirectory(prefix="vime-sync-") as scratch:
        place = Path(scratch)
        for path, entry in tree.items(folder):
            name = path[len(folder) + 1 :]
            info = repo.objects.info(entry.oid) if entry.mode in ("100644", "100755") and "/" not in name else None
            if info is not None and info[2] <= MAX_STACK_FILE:
                (place / name).write_bytes(repo.objects.read(entry.oid, "blob"))
        stack = load_stack(place)
        return Stack(Path(folder), stack.pin, stack.patches)


def _left_out(repo: Repo, policy: Policy, manifest: Manifest) -> list[LeftOut]:
    """Upstream paths of the range that policy gives to an exclusion: mirrored changes may still leave a file out."""
    translator = Translator.from_policy(policy)
    found = {}
    for change in _upstream_changes(repo, manifest):
        path = translator.path(change.path)
        owner = policy.owner_of(path)
        if owner.kind is OwnerKind.EXCLUDE:
            found[path] = LeftOut(path, str(owner.kind), owner.reason)
    return [found[path] for path in sorted(found)]


def _upstream_changes(repo: Repo, manifest: Manifest) -> list[PathChange]:
    """The paths that the range changed, or of single changes those of each; none when upstream's commits are not here."""
    if not manifest.picks:
        ends = [_resolved(repo, revision) if revision else None for revision in (manifest.base, manifest.through)]
        return tree_diff(repo, ends[0], ends[1]) if ends[0] and ends[1] else []
    picked = [
        oid for entry in manifest.entries if entry.decision is Kind.TAKE and (oid := _resolved(repo, entry.commit))
    ]
    pairs = [(parent, oid) for oid in picked if (parent := _resolved(repo, f"{oid}^"))]
    return [change for changes in commit_diffs(repo, pairs).values() for change in changes]
