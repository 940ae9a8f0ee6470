"""Puts an audit's inputs together from revisions of a repository."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from synctool.audit.context import Audit
from synctool.audit.engine.index import EngineIndex
from synctool.audit.files import Files
from synctool.errors import ConfigError
from synctool.git.commits import Commit, read_commits
from synctool.git.diff import tree_diff
from synctool.git.repo import Repo
from synctool.policy.model import Policy
from synctool.translate.translator import Translator


def build_audit(
    repo: Repo,
    policy: Policy,
    translator: Translator,
    *,
    tree: str,
    since: str | None = None,
    base: str | None = None,
    through: str | None = None,
    engine: EngineIndex | None = None,
    image: Path | None = None,
) -> Audit:
    """An audit of a downstream commit or tree.

    ``since`` is downstream before the sync, ``base`` and ``through`` are upstream before and after the range. Each is a revision.
    """
    audit = Audit(policy, translator, Files(repo.tree(tree)), engine=engine)
    if since is not None:
        audit.before = Files(repo.tree(since))
        audit.commits = tuple(_commits(repo, since, tree))
        audit.earlier_patches = tuple(_earlier_patches(repo, audit.before, since))
    if base is not None and through is not None:
        audit.base = Files(repo.tree(base), name=translator.path, content=translator.content)
        audit.through = Files(repo.tree(through), name=translator.path, content=translator.content)
        audit.range_changes = tuple(tree_diff(repo, repo.resolve(base, "tree"), repo.resolve(through, "tree")))
        audit.recorded = _recorded(repo, translator, tree)
    if image is not None:
        audit.image = read_image(image)
    return audit


def _commits(repo: Repo, since: str, tree: str) -> list[Commit]:
    """The commits of the sync, when both ends are commits."""
    kinds = [repo.text("cat-file", "-t", repo.resolve(name, "object")) for name in (since, tree)]
    if kinds != ["commit", "commit"]:
        return []
    oids = repo.text("rev-list", "--no-merges", f"{repo.resolve(since)}..{repo.resolve(tree)}", "--").split()
    return read_commits(repo.objects, oids)


def _earlier_patches(repo: Repo, before: Files, since: str) -> Iterator[tuple[str, bytes, str]]:
    """For each patch file downstream had before the sync, the version before that one: what its last change dropped is in it."""
    patches = set(before.ending(".patch", ".diff"))
    if not patches or repo.text("cat-file", "-t", repo.resolve(since, "object")) != "commit":
        return
    log = repo.text(
        "log",
        "--no-renames",
        "--raw",
        "--no-abbrev",
        "--format=commit %H",
        repo.resolve(since),
        "--",
        *sorted(patches),
    )
    commit = ""
    for line in log.splitlines():
        if line.startswith("commit "):
            commit = line.split()[1]
        elif line.startswith(":") and "\t" in line:
            head, _, path = line.partition("\t")
            old = head.split()[2]
            if path in patches and old.strip("0"):
                patches.discard(path)
                yield path, repo.objects.read(old, "blob"), commit


def _recorded(repo: Repo, translator: Translator, tree: str) -> frozenset[str]:
    """Downstream paths of upstream changes that the tree's manifests exclude or defer: they are accounted for."""
    from synctool.plan.manifest import recorded_manifests
    from synctool.plan.model import Kind

    left_out = [
        entry.commit
        for manifest in recorded_manifests(repo, repo.tree(tree))
        for entry in manifest.entries
        if entry.decision in (Kind.EXCLUDE, Kind.DEFER)
    ]
    found: set[str] = set()
    for commit in left_out:
        parent = repo.run("rev-parse", "--verify", "--quiet", f"{commit}^", check=False)
        if parent.returncode == 0:
            found |= {translator.path(change.path) for change in tree_diff(repo, f"{commit}^", commit)}
    return frozenset(found)


def read_image(path: Path) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Distributions of an image with version and requirements, from the JSON of ``pip inspect`` or of ``pip install --report``.

    Raises:
        ConfigError: the file is neither.
    """
    from packaging.utils import canonicalize_name

    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        listed = raw.get("installed") or raw["install"]
        return {
            canonicalize_name(one["metadata"]["name"]): (
                str(one["metadata"]["version"]),
                tuple(one["metadata"].get("requires_dist", ())),
            )
            for one in listed
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"not a report of pip: {error}", where=str(path), hint="run 'pip inspect > FILE' inside the image"
        ) from None
