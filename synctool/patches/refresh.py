"""Rewrites patches from trees, and says what a rewrite changes: only where the patch goes, or what it does.

A rewrite is a proposal below ``proposed/`` of the stack until somebody accepts it; the original stays as it is until then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from synctool.errors import ConfigError, NothingToDo
from synctool.git.repo import Repo
from synctool.git.tree import Tree
from synctool.patches.difftext import parse_patch
from synctool.patches.export import diff_trees, join_patch
from synctool.patches.filepatch import PatchText
from synctool.patches.pathpolicy import Allowed, check_patch
from synctool.patches.stack import StackPatch, try_stack
from synctool.whole_file import write_whole

Change = Literal["none", "context", "content"]
PROPOSED = "proposed"


@dataclass(frozen=True, slots=True)
class Refreshed:
    """A rewritten patch: its bytes, what changed against the old text, and the first later patch that does not apply any more, with the reason."""

    name: str
    data: bytes
    change: Change
    breaks: str | None = None


def meaning(patch: PatchText) -> dict[tuple[str | None, str | None], object]:
    """What a patch does, apart from where: removed and added lines, modes and moves by path."""
    return {
        (change.old_path, change.new_path): (
            tuple(line for hunk in change.hunks for line in hunk.changes),
            None if change.old_mode == change.new_mode else (change.old_mode, change.new_mode),
            change.move,
            change.binary[0].data if change.binary else None,
        )
        for change in patch.files
    }


def classify(old: bytes, new: bytes, name: str) -> Change:
    """``none``: the same bytes. ``context``: the same lines are removed and added. ``content``: they are not."""
    if old == new:
        return "none"
    return "context" if meaning(parse_patch(old, name)) == meaning(parse_patch(new, name)) else "content"


def refresh_patch(
    repo: Repo, patch: StackPatch, before: str, after: str, later: tuple[StackPatch, ...], allowed: Allowed
) -> Refreshed:
    """The patch that turns ``before`` into ``after``, under the old one's header, and whether the later patches still apply on top.

    Raises:
        NothingToDo: the trees are equal.
        Refused: the new patch breaks the path policy.
    """
    if before == after:
        raise NothingToDo(
            f"{patch.name} would change nothing", where=patch.where, hint="remove it with 'vime-sync patch drop'"
        )
    data = join_patch(patch.text.header, diff_trees(repo, before, after))
    check_patch(parse_patch(data, patch.name), patch.name, allowed)
    applied = try_stack(Tree(repo.objects, after), later, allowed)
    breaks = (
        None if applied.error is None or applied.stopped_at is None else f"{applied.stopped_at.name}: {applied.error}"
    )
    return Refreshed(
        patch.name, data, classify(patch.data, data, patch.name) if patch.text.files else "content", breaks
    )


def propose(folder: Path, refreshed: Refreshed) -> Path:
    """Keep a rewrite as a proposal and return its file."""
    path = folder / PROPOSED / refreshed.name
    write_whole(path, refreshed.data)
    return path


def accept(folder: Path, name: str) -> Path:
    """Let a kept proposal take the place of the original.

    Raises:
        NothingToDo: there is none.
    """
    path = folder / PROPOSED / name
    if not path.is_file():
        raise NothingToDo(f"there is no proposal for {name}", where=str(folder / PROPOSED))
    path.replace(folder / name)
    if not any(path.parent.iterdir()):
        path.parent.rmdir()
    return folder / name


def accept_data(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write patches straight into the stack; proposals for them are dropped."""
    for name, data in files.items():
        write_whole(folder / name, data)
        proposal = folder / PROPOSED / name
        proposal.unlink(missing_ok=True)
        if proposal.parent.is_dir() and not any(proposal.parent.iterdir()):
            proposal.parent.rmdir()


def reject_markers(data: bytes, name: str) -> None:
    """Refuse a patch that adds conflict markers.

    Raises:
        ConfigError: it does.
    """
    for change in parse_patch(data, name).files:
        for hunk in change.hunks:
            for kind, text in hunk.lines:
                if kind == "+" and text.startswith((b"<<<<<<< ", b">>>>>>> ", b"||||||| ")):
                    raise ConfigError(
                        "a conflict marker is left",
                        where=f"{name}: {change.path}",
                        hint="resolve it, then refresh again",
                    )
