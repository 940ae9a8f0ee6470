"""``vime-sync patch landed``."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from synctool.cli.app import Context, verb
from synctool.cli.patch_common import Where, stack_options
from synctool.cli.report import Report
from synctool.errors import NothingToDo


@click.command(name="landed")
@verb
@stack_options
@click.option("--in", "version", required=True, help="The release to look in.")
@click.option("--new-source", help="An archive of that release, instead of the package index.")
def command(context: Context, where: Where, version: str, new_source: str | None) -> Report:
    """Prove which patches, or hunks of them, a release contains, by taking them out of it, last one first.

    A hunk is claimed only when its new lines stand there more often than before the patch, and its old lines less often. Changes nothing.
    """
    from synctool.git.tree import Tree
    from synctool.patches.landed import prove_landed
    from synctool.patches.rebase import find_renames
    from synctool.patches.release import open_release
    from synctool.patches.stack import apply_stack
    from synctool.patches.store import joined

    stack = where.load()
    if not stack.patches:
        raise NothingToDo("the series is empty", where=str(stack.folder))
    old = where.open(stack.pin)
    with tempfile.TemporaryDirectory(prefix="vime-sync-") as scratch:
        target = stack.folder.parent / version
        new = open_release(
            stack.pin, version, target, Path(scratch), source=new_source, offline=where.offline, quiet=where.quiet
        )
    with joined(old, new) as repo:
        steps = list(apply_stack(Tree(repo.objects, old.tree_oid), stack.patches, stack.pin.allowed))
        before = {step.before: Tree(repo.objects, step.before) for step in steps}
        renames = find_renames(repo, steps, old.tree_oid, new.tree_oid)
        found = prove_landed(steps, before, Tree(repo.objects, new.tree_oid), renames)
    rows = [
        {
            "patch": landing.patch.name,
            "state": landing.state,
            "proofs": [
                {"path": p.path, "line": p.at, "landed": p.landed, "evidence": p.evidence} for p in landing.proofs
            ],
        }
        for landing in found
    ]
    data = {"from": stack.pin.label, "in": new.pin.label, "archive_sha256": new.pin.archive.sha256, "patches": rows}
    summary = []
    for landing in found:
        count = sum(p.landed for p in landing.proofs)
        summary.append(f"{landing.state:>12}  {landing.patch.name}: {count} of {len(landing.proofs)} units proven")
        if landing.state != "absent":
            summary += [f"              {landing.patch.name}:{p.at} {p.path}: {p.evidence}" for p in landing.proofs]
    states = [landing.state for landing in found]
    summary.append(
        ", ".join(f"{states.count(s)} {s}" for s in ("landed", "half-landed", "absent")) + f" in {new.pin.label}"
    )
    return Report("patch landed", data, summary)
