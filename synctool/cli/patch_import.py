"""``vime-sync patch import``."""

from __future__ import annotations

from pathlib import Path

import click

from synctool.cli.app import Context, verb
from synctool.cli.patch_common import Where, stack_options
from synctool.cli.report import Report
from synctool.errors import SyncError, UsageError


@click.command(name="import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@verb
@stack_options
@click.option("--dry-run", is_flag=True, help="Say what would be added and the resulting tree; write nothing.")
def command(context: Context, where: Where, files: tuple[Path, ...], dry_run: bool) -> Report:
    """Add patches on top of the stack: mails or mailboxes, plain diffs, or a folder with a quilt series.

    Each must apply exactly. It is written in canonical form with a DEP-3 header made from the mail; what the header still lacks is listed.
    """
    from synctool.patches import mail
    from synctool.patches.apply import apply_patch
    from synctool.patches.difftext import parse_patch
    from synctool.patches.export import diff_trees, join_patch
    from synctool.patches.header import lint_header, parse_header
    from synctool.patches.series import edit_series, parse_series
    from synctool.patches.stack import apply_stack
    from synctool.whole_file import write_whole

    stack = where.load()
    sources: list[Path] = []
    for path in files:
        if path.is_dir():
            listing = path / "series"
            if not listing.is_file():
                raise UsageError("the folder has no series file", where=str(path))
            sources += [path / entry.name for entry in parse_series(listing.read_text(), str(listing))]
        else:
            sources.append(path)
    source = where.open(stack.pin)
    steps = list(apply_stack(source.tree, stack.patches, stack.pin.allowed))
    tree, before = source.tree, source.tree_oid
    if steps:
        from synctool.git.tree import Tree

        tree, before = Tree(source.repo.objects, steps[-1].after), steps[-1].after
    taken = {patch.name for patch in stack.patches}
    made: list[tuple[str, bytes]] = []
    messages: list[str] = []
    for path in sources:
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise UsageError(f"cannot be read: {error.strerror}", where=str(path)) from error
        for incoming in mail.read_patches(raw, str(path)):
            plain = not mail.is_mail(raw) and path.suffix in (".patch", ".diff") and path.name not in taken
            name = path.name if plain else mail.file_name(incoming.subject or path.stem, taken)
            tree, _ = apply_patch(tree, parse_patch(incoming.body, str(path)), str(path), allowed=stack.pin.allowed)
            after = tree.write()
            if after == before:
                raise SyncError("the patch changes nothing", where=str(path))
            data = join_patch(mail.render_incoming(incoming), diff_trees(source.repo, before, after))
            messages += [
                f"{f.where}: {f.message}; {f.fix}"
                for f in lint_header(parse_header(mail.render_incoming(incoming)), name)
            ]
            taken.add(name)
            made.append((name, data))
            before = after
    if not dry_run:
        text = (stack.folder / "series").read_text()
        for name, data in made:
            write_whole(stack.folder / name, data)
            text = edit_series(text, add=name)
        write_whole(stack.folder / "series", text.encode())
    data_out = {"patches": [name for name, _ in made], "tree": before, "dry_run": dry_run}
    did = "would be added" if dry_run else "added"
    return Report(
        "patch import", data_out, [*(f"{did}: {name}" for name, _ in made), f"tree {before}"], messages=messages
    )
