"""``vime-sync patch refresh``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from synctool.cli.app import Context, verb
from synctool.cli.patch_common import Where, stack_options
from synctool.cli.report import Report
from synctool.errors import Exit, NothingToDo, RepositoryError, UsageError

if TYPE_CHECKING:
    from synctool.patches.refresh import Refreshed
    from synctool.patches.stack import Stack
    from synctool.patches.store import PinnedSource


@click.command(name="refresh")
@click.argument("names", nargs=-1, metavar="[PATCH]...")
@verb
@stack_options
@click.option(
    "--from", "folder", type=click.Path(path_type=Path), help="The edit folder that holds the patch's new content."
)
@click.option(
    "--accept", is_flag=True, help="Let the rewrite take the original's place; without it, it is kept below proposed/."
)
@click.option("--dry-run", is_flag=True, help="Say what would change, write nothing.")
def command(
    context: Context, where: Where, names: tuple[str, ...], folder: Path | None, accept: bool, dry_run: bool
) -> Report:
    """Rewrite a patch from its edit folder, or patches (all, by default) in canonical form on the pin.

    Says of each whether only its context changes or what it does. The header stays as it is to the byte.
    """
    from synctool.patches import refresh
    from synctool.patches.rebased_folder import settle_conflict
    from synctool.patches.series import edit_series
    from synctool.whole_file import write_whole

    stack = where.load()
    source = where.open(stack.pin)
    if folder is not None:
        if len(names) != 1:
            raise UsageError("--from needs the one patch that was edited there")
        done = [_from_folder(stack, source, names[0], folder)]
    else:
        done = _canonical(stack, source, names)
    for item in done:
        refresh.reject_markers(item.data, item.name)
    listed = {patch.name for patch in stack.patches}
    changed = [item for item in done if item.change != "none" or item.name not in listed]
    said = {"none": "unchanged", "context": "context only", "content": "content changed"}
    data: dict[str, Any] = {
        "patches": [{"patch": item.name, "change": item.change, "breaks": item.breaks} for item in done],
        "accepted": accept and not dry_run,
        "dry_run": dry_run,
    }
    summary = [f"{item.name}: {said[item.change]}" for item in done]
    messages = [f"{item.name}: a later patch does not apply on it: {item.breaks}" for item in done if item.breaks]
    if not changed:
        raise NothingToDo(f"{len(done)} patches are as they should be", where=str(stack.folder))
    if dry_run:
        summary.append("dry run: nothing was written")
    elif accept:
        refresh.accept_data(stack.folder, {item.name: item.data for item in changed})
        for item in changed:
            settle_conflict(stack.folder, item.name)
            if item.name not in listed:
                series = stack.folder / "series"
                write_whole(series, edit_series(series.read_text(), add=item.name).encode())
        summary.append(f"{len(changed)} patches rewritten")
    else:
        for item in changed:
            summary.append(
                f"proposed: {refresh.propose(stack.folder, item)}; take it with 'vime-sync patch refresh {item.name} --accept'"
            )
    return Report("patch refresh", data, summary, messages=messages, exit_code=Exit.ATTENTION if messages else Exit.OK)


def _canonical(stack: Stack, source: PinnedSource, names: tuple[str, ...]) -> list[Refreshed]:
    from synctool.patches import refresh
    from synctool.patches.export import diff_trees, join_patch
    from synctool.patches.stack import apply_stack

    wanted = {stack.patch(name).name for name in names}
    done = []
    for step in apply_stack(source.tree, stack.patches, stack.pin.allowed):
        patch = step.patch
        proposal = stack.folder / refresh.PROPOSED / patch.name
        if wanted and patch.name not in wanted:
            continue
        if proposal.is_file() and names:
            kept = proposal.read_bytes()
            done.append(refresh.Refreshed(patch.name, kept, refresh.classify(patch.data, kept, patch.name)))
            continue
        data = join_patch(patch.text.header, diff_trees(source.repo, step.before, step.after))
        done.append(refresh.Refreshed(patch.name, data, refresh.classify(patch.data, data, patch.name)))
    if not done:
        raise NothingToDo("the series is empty", where=str(stack.folder))
    return done


def _from_folder(stack: Stack, source: PinnedSource, name: str, folder: Path) -> Refreshed:
    from synctool.git.tree import Tree
    from synctool.patches import refresh, workspace
    from synctool.patches.stack import StackPatch, apply_stack

    note = workspace.read_note(folder)
    file = next((p.name for p in stack.patches if name in (p.name, p.name.rpartition(".")[0])), None)
    if file is None:
        file = name if name.endswith((".patch", ".diff")) else f"{name}.patch"
        path = stack.folder / refresh.PROPOSED / file
        if not path.is_file():
            stack.patch(name)  # tells which names there are
        patch, at = StackPatch(file, path.read_bytes(), str(path)), len(stack.patches)
    else:
        patch = stack.patch(file)
        at = stack.patches.index(patch)
    if note.patch != file or note.pin != stack.pin.label:
        raise UsageError(
            f"{note.patch} of {note.pin} is edited there",
            where=str(folder),
            hint=f"refresh that one, or edit {file} in another folder",
        )
    if note.patch_sha256 != patch.sha256:
        raise RepositoryError(
            f"{file} was changed since the edit began",
            where=str(folder),
            hint="begin a new edit and bring your change over",
        )
    steps = list(apply_stack(source.tree, stack.patches[:at], stack.pin.allowed))
    before = steps[-1].after if steps else source.tree_oid
    if before != note.before:
        raise RepositoryError(
            "an earlier patch was changed since the edit began",
            where=str(folder),
            hint="begin a new edit and bring your change over",
        )
    after = workspace.read_back(folder, Tree(source.repo.objects, before))
    return refresh.refresh_patch(source.repo, patch, before, after, stack.patches[at + 1 :], stack.pin.allowed)
