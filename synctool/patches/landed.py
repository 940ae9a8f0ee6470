"""Proves which patches, and which hunks of them, another release contains already: by taking them out, last one first.

A hunk counts as landed only on proof: its new lines stand in the release more often than they did in the old release before the patch, and its
old lines no longer stand there, or less often. Then it is taken out of the release's tree, so that the patches before it are looked for in what
they themselves made. What merely looks similar is not claimed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from synctool.git.tree import Entry, Tree
from synctool.patches.apply import Image, place_hunk, split_lines
from synctool.patches.filepatch import FilePatch, Hunk, PatchText
from synctool.patches.stack import StackPatch, Step

State = Literal["landed", "half-landed", "absent"]


@dataclass(frozen=True, slots=True)
class Proof:
    """What was found about one unit (a hunk, or a whole file that is created, deleted, moved, binary or changes mode)."""

    path: str
    #: Line of the patch file.
    at: int
    landed: bool
    evidence: str


@dataclass(frozen=True, slots=True)
class Landing:
    """What of one patch has landed; ``residual`` is the patch without it (None when nothing is left)."""

    patch: StackPatch
    proofs: tuple[Proof, ...]
    residual: PatchText | None

    @property
    def state(self) -> State:
        """All, some or none of the units are proven."""
        count = sum(proof.landed for proof in self.proofs)
        return "landed" if count == len(self.proofs) else "half-landed" if count else "absent"


def prove_landed(
    steps: Sequence[Step], old: Mapping[str, Tree], release: Tree, renames: Mapping[str, str]
) -> list[Landing]:
    """Look for every patch in another release, by reverse pop. The result is in the order of ``steps``.

    ``old`` has the tree before each patch, by tree id; ``release`` is the other release; ``renames`` maps paths that moved between the two.
    """
    tree = release.copy()
    found = []
    for step in reversed(steps):
        proofs: list[Proof] = []
        left: list[FilePatch] = []
        for change in step.patch.text.files:
            rest = _pop(change, old[step.before], tree, renames, proofs)
            if rest is not None:
                left.append(rest)
        residual = PatchText(step.patch.text.header, tuple(left)) if left else None
        found.append(Landing(step.patch, tuple(proofs), residual))
    return found[::-1]


def _pop(
    change: FilePatch, before: Tree, tree: Tree, renames: Mapping[str, str], proofs: list[Proof]
) -> FilePatch | None:
    """Take what landed of one change out of ``tree``, add the proofs, and return what has not landed."""

    def whole(landed: bool, evidence: str) -> FilePatch | None:
        proofs.append(Proof(change.path, change.at, landed, evidence))
        return None if landed else change

    if (
        change.old_path is None
        or change.new_path is None
        or change.move
        or change.binary is not None
        or not change.hunks
    ):
        landed, evidence = _pop_whole(change, before, tree, renames)
        return whole(landed, evidence)
    path = renames.get(change.path, change.path) if change.path not in tree else change.path
    entry, old_entry = tree.get(path), before.get(change.old_path)
    if entry is None:
        return whole(False, "the file is not there")
    if old_entry is None:
        return whole(False, "the file was not there before")
    original = split_lines(tree.store.read(old_entry.oid, "blob"))
    image = Image(split_lines(tree.store.read(entry.oid, "blob")))
    left = []
    for hunk in change.hunks:
        landed, evidence = _pop_hunk(image, hunk, original)
        proofs.append(Proof(path, hunk.at, landed, evidence))
        if not landed:
            left.append(hunk)
    if len(left) < len(change.hunks):
        tree.set(path, Entry(entry.mode, tree.store.write_blob(b"".join(image.lines))))
    if not left and change.old_mode != change.new_mode and entry.mode != change.new_mode:
        proofs.append(Proof(path, change.at, False, "the mode is not changed"))
        return replace(change, hunks=())
    return replace(change, hunks=tuple(left)) if left else None


def _pop_hunk(image: Image, hunk: Hunk, original: list[bytes]) -> tuple[bool, str]:
    old, new = hunk.old, hunk.new
    if not new:
        return (False, "lines that should be gone are there") if image.lines else (True, "the file is empty")
    places = image.places(new)
    now_new, was_new = len(places), len(Image(original).places(new))
    if not now_new:
        return False, "its new lines are not there"
    if now_new <= was_new:
        return False, "its new lines stand there, but did before the patch too"
    # At a file's start or end the old lines stand whole beside what was added: inside of the new lines they say nothing.
    loose = (
        [at for at in image.places(old) if not any(p <= at and at + len(old) <= p + len(new) for p in places)]
        if old
        else []
    )
    if loose and len(loose) >= len(Image(original).places(old)):
        return False, "its new lines stand there, but its old lines still do as well"
    place = place_hunk(image, hunk.reversed(), anchored=False)
    if place is None:
        return False, "its new lines stand there, but among lines of another hunk"
    return True, f"its new lines stand at line {place.line}" + (
        f", {place.offset:+d} from the patch's place" if place.offset else ""
    )


def _pop_whole(change: FilePatch, before: Tree, tree: Tree, renames: Mapping[str, str]) -> tuple[bool, str]:
    """Changes that land as a whole or not at all."""
    old_entry = before.get(change.old_path) if change.old_path is not None else None
    old_data = before.store.read(old_entry.oid, "blob") if old_entry else b""
    if change.new_path is None:
        assert change.old_path is not None
        if change.old_path in tree:
            return False, "the file is still there"
        if change.old_path in renames:
            return False, f"the file moved to {renames[change.old_path]}"
        if old_entry is None:
            return False, "the file was not there before"
        tree.set(change.old_path, old_entry)
        return True, "the file is gone"
    wanted = _result(change, old_data)
    entry = tree.get(change.new_path)
    if entry is None:
        return False, "the file is not there"
    if wanted is None or tree.store.hash("blob", wanted) != entry.oid:
        return False, "the file is there with other content"
    if change.new_mode is not None and entry.mode != change.new_mode:
        return False, f"the file is there with mode {entry.mode}"
    if change.move == "rename" and change.old_path is not None and change.old_path in tree:
        return False, "the file stands under its old name too"
    if old_entry is not None and change.old_path == change.new_path and old_entry == entry:
        return False, "the file is as it was"
    tree.delete(change.new_path)
    if change.old_path is not None and change.move != "copy" and old_entry is not None:
        tree.set(change.old_path, old_entry)
    return True, "the file is there with the same content"


def _result(change: FilePatch, old: bytes) -> bytes | None:
    if change.binary is not None:
        return change.binary[0].apply(old)
    image = Image(split_lines(old))
    return b"".join(image.lines) if all(place_hunk(image, hunk) for hunk in change.hunks) else None
