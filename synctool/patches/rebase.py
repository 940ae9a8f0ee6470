"""Carries a stack to another release: every patch gets a class, and a failure does not stop the rest.

What has landed is taken out first, on proof. What is left applies as it is, applies with offsets, or is merged three-way (old release before and
after the patch, new release): a clean merge is a proposal for a person to look at, a conflict is laid out with markers and left out of what
follows. The old stack is not touched.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from synctool.errors import EnvironmentFailure, SyncError
from synctool.git.diff import tree_diff
from synctool.git.repo import Repo
from synctool.git.runner import run_git
from synctool.git.tree import SYMLINK, Entry, Tree
from synctool.patches.apply import Outcome, apply_patch
from synctool.patches.export import diff_trees, join_patch
from synctool.patches.filepatch import FilePatch, PatchText
from synctool.patches.landed import Landing, prove_landed
from synctool.patches.pathpolicy import Allowed
from synctool.patches.stack import Stack, Step, apply_stack

#: A file of the old release counts as moved when a new one is at least this similar, in percent.
RENAME_SIMILARITY = 60


class Fate(StrEnum):
    """What becomes of a patch on the new release."""

    APPLIES = "applies"
    OFFSET = "offset"
    LANDED = "landed"
    HALF_LANDED = "half-landed"
    DRIFT = "drift"
    CONFLICT = "conflict"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class ConflictFile:
    """One file that did not merge: why, and the merge with diff3 markers (None where there is nothing to merge)."""

    path: str
    why: str
    merged: bytes | None


@dataclass(frozen=True, slots=True)
class Rebased:
    """One patch on the new release. ``data`` is its new text (None when landed or dropped; the old text for a conflict)."""

    name: str
    fate: Fate
    data: bytes | None
    reasons: tuple[str, ...]
    landing: Landing
    conflicts: tuple[ConflictFile, ...] = ()
    #: For a conflict: every file of the patch as the merge left it, clean or with markers.
    merged: tuple[tuple[str, bytes], ...] = ()
    #: Offsets at which the hunk fits elsewhere too, merges, half-landed rests: a person must look.
    review: bool = False


@dataclass(frozen=True, slots=True)
class Rebase:
    """The whole stack on the new release, and the tree of all that applies."""

    patches: tuple[Rebased, ...]
    tree: str
    renames: dict[str, str] = field(default_factory=dict)

    @property
    def needs_person(self) -> bool:
        """Whether any patch must be looked at."""
        return any(patch.review for patch in self.patches)


def rebase_stack(repo: Repo, stack: Stack, old_tree: str, new_tree: str, *, allowed: Allowed | None = None) -> Rebase:
    """Rebase ``stack`` from one tree to another; ``repo`` has the objects of both.

    Raises:
        DoesNotApply: the stack does not apply to its own pin.
    """
    permit = allowed or stack.pin.allowed
    steps = list(apply_stack(Tree(repo.objects, old_tree), stack.patches, permit))
    renames = find_renames(repo, steps, old_tree, new_tree)
    landings = prove_landed(
        steps, {step.before: Tree(repo.objects, step.before) for step in steps}, Tree(repo.objects, new_tree), renames
    )
    tree = Tree(repo.objects, new_tree)
    done: list[Rebased] = []
    left_out: list[tuple[str, set[str]]] = []
    for step, landing in zip(steps, landings, strict=True):
        if step.patch.header.drop_at_next_pin:
            done.append(
                Rebased(
                    step.patch.name, Fate.DROPPED, None, (step.patch.header.get("Drop-At-Next-Pin") or "",), landing
                )
            )
            continue
        result, tree = _one(repo, step, landing, tree, renames, permit)
        paths = {path for outcome in step.outcomes for path in outcome.change.paths}
        missing = [name for name, touched in left_out if touched & paths]
        if missing and result.fate in (Fate.DRIFT, Fate.CONFLICT):
            result = replace(
                result,
                reasons=(
                    *result.reasons,
                    f"shares files with {', '.join(missing)}, left out above: look again once that is resolved",
                ),
            )
        if result.fate is Fate.CONFLICT:
            left_out.append((step.patch.name, paths))
        done.append(result)
    return Rebase(tuple(done), tree.write(), renames)


def find_renames(repo: Repo, steps: list[Step], old_tree: str, new_tree: str) -> dict[str, str]:
    """Paths that the stack touches and the new release has elsewhere."""
    touched = {path for step in steps for outcome in step.outcomes for path in outcome.change.paths}
    old, new = Tree(repo.objects, old_tree), Tree(repo.objects, new_tree)
    if not any(path in old and path not in new for path in touched):
        return {}
    changes = tree_diff(repo, old_tree, new_tree, renames=RENAME_SIMILARITY)
    return {c.old_path: c.path for c in changes if c.status == "R" and c.old_path in touched}


def _one(
    repo: Repo, step: Step, landing: Landing, tree: Tree, renames: Mapping[str, str], allowed: Allowed
) -> tuple[Rebased, Tree]:
    name = step.patch.name
    if landing.residual is None:
        return Rebased(name, Fate.LANDED, None, _evidence(landing), landing), tree
    residual = PatchText(landing.residual.header, tuple(_moved(change, renames) for change in landing.residual.files))
    before = tree.copy().write()
    try:
        changed, outcomes = apply_patch(tree, residual, name, allowed=allowed, keep_context=step.patch.keep_context)
    except SyncError as error:
        return _merge(repo, step, landing, tree, renames, str(error))
    data = join_patch(step.patch.text.header, diff_trees(repo, before, changed.write()))
    fate, reasons, review = _fate(landing, outcomes, renames)
    return Rebased(name, fate, data, reasons, landing, review=review), changed


def _fate(
    landing: Landing, outcomes: tuple[Outcome, ...], renames: Mapping[str, str]
) -> tuple[Fate, tuple[str, ...], bool]:
    reasons = [f"{o.change.path}:{p.line} moved {p.offset:+d}" for o in outcomes for p in o.placed if p.offset]
    guesses = [
        f"{o.change.path}:{p.line} fits {p.alternatives} other places too"
        for o in outcomes
        for p in o.placed
        if p.offset and p.alternatives
    ]
    moved = [f"{old} is {new} now" for old, new in renames.items() if any(new == o.change.path for o in outcomes)]
    if landing.state == "half-landed":
        return Fate.HALF_LANDED, (*_evidence(landing), *moved, *reasons, *guesses), True
    fate = Fate.OFFSET if reasons or moved else Fate.APPLIES
    return fate, (*moved, *reasons, *guesses), bool(guesses or moved)


def _evidence(landing: Landing) -> tuple[str, ...]:
    return tuple(
        f"{proof.path}: {'landed' if proof.landed else 'not landed'}: {proof.evidence}" for proof in landing.proofs
    )


def _moved(change: FilePatch, renames: Mapping[str, str]) -> FilePatch:
    old = renames.get(change.old_path, change.old_path) if change.old_path is not None else None
    new = (
        renames.get(change.new_path, change.new_path)
        if change.new_path is not None and change.old_path == change.new_path
        else change.new_path
    )
    return replace(change, old_path=old, new_path=new)


def _merge(
    repo: Repo, step: Step, landing: Landing, tree: Tree, renames: Mapping[str, str], why: str
) -> tuple[Rebased, Tree]:
    """Three-way, file by file: the old release before and after the patch against the new release."""
    old, theirs, changed = Tree(repo.objects, step.before), Tree(repo.objects, step.after), tree.copy()
    conflicts: list[ConflictFile] = []
    reasons = [f"does not apply as it is: {why}"]
    if landing.state == "half-landed":
        reasons += [text for text in _evidence(landing) if ": landed: " in text]
    before = tree.copy().write()
    for path in sorted({p for outcome in step.outcomes for p in outcome.change.paths}):
        place = renames.get(path, path) if path not in tree else path
        b, t, o = old.get(path), theirs.get(path), tree.get(place)
        if b == t or o == t:
            continue
        if o == b:
            _put(changed, place, t)
            continue
        merged = _merge_entry(repo, b, t, o)
        if isinstance(merged, Entry):
            changed.set(place, merged)
            reasons.append(f"{place}: merged three-way")
        else:
            conflicts.append(ConflictFile(place, *merged))
    if conflicts:
        reasons += [f"{c.path}: {c.why}" for c in conflicts]
        left = {c.path: c.merged for c in conflicts if c.merged is not None} | _clean_part(repo, before, changed)
        merged_files = tuple(sorted(left.items()))
        return Rebased(
            step.patch.name,
            Fate.CONFLICT,
            step.patch.data,
            tuple(reasons),
            landing,
            tuple(conflicts),
            merged_files,
            review=True,
        ), tree
    after = changed.write()
    if after == before:
        reasons.append("a three-way merge leaves nothing of it to do")
        return Rebased(step.patch.name, Fate.LANDED, None, tuple(reasons), landing), tree
    data = join_patch(step.patch.text.header, diff_trees(repo, before, after))
    return Rebased(step.patch.name, Fate.DRIFT, data, tuple(reasons), landing, review=True), changed


def _clean_part(repo: Repo, before: str, changed: Tree) -> dict[str, bytes]:
    """Contents that merged cleanly beside a conflict."""
    return {
        c.path: repo.objects.read(c.oid, "blob") for c in tree_diff(repo, before, changed.write()) if c.status != "D"
    }


def _put(tree: Tree, path: str, entry: Entry | None) -> None:
    if entry is None:
        tree.delete(path)
    else:
        tree.set(path, entry)


def _merge_entry(
    repo: Repo, base: Entry | None, theirs: Entry | None, ours: Entry | None
) -> Entry | tuple[str, bytes | None]:
    """A merged entry, or why there is none and the text with markers."""
    if ours is None:
        return "the new release deleted the file", None
    if theirs is None:
        return "the patch deletes the file, the new release changed it", None
    if SYMLINK in (ours.mode, theirs.mode) or (base is not None and base.mode == SYMLINK):
        return "a symbolic link changed on both sides", None
    texts = [repo.objects.read(e.oid, "blob") if e is not None else b"" for e in (ours, base, theirs)]
    if any(b"\0" in text[:8000] for text in texts):
        return "binary, changed on both sides", None
    merged, clean = merge_text(*texts)
    if not clean:
        return ("both added the file" if base is None else "both changed the same lines"), merged
    mode = ours.mode if base is None or theirs.mode == base.mode else theirs.mode
    return Entry(mode, repo.objects.write_blob(merged))


def merge_text(ours: bytes, base: bytes, theirs: bytes) -> tuple[bytes, bool]:
    """Three-way merge of texts by ``git merge-file``: the result, with diff3 markers where it is not clean, and whether it is.

    Raises:
        EnvironmentFailure: git failed.
    """
    with tempfile.TemporaryDirectory(prefix="vime-sync-") as name:
        folder = Path(name)
        for label, data in (("ours", ours), ("base", base), ("theirs", theirs)):
            (folder / label).write_bytes(data)
        labels = ["-L", "new release", "-L", "old release", "-L", "patch"]
        done = run_git(
            folder / "none.git",
            "merge-file",
            "-p",
            "--diff3",
            *labels,
            "ours",
            "base",
            "theirs",
            check=False,
            cwd=folder,
        )
    if done.returncode < 0 or done.returncode > 127:
        raise EnvironmentFailure(f"git merge-file failed: {done.stderr.decode(errors='replace')[:200]}")
    return done.stdout, done.returncode == 0
