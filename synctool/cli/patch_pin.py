"""``vime-sync patch pin``."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import click

from synctool.cli.app import Context, verb
from synctool.cli.patch_common import Where, stack_options
from synctool.cli.report import Report
from synctool.errors import UsageError


@click.command(name="pin")
@click.argument("version", required=False)
@verb
@stack_options
@click.option(
    "--to",
    "to",
    type=click.Path(path_type=Path),
    help="The folder for the new pin.  [default: beside the stack, named VERSION]",
)
@click.option("--dry-run", is_flag=True, help="Print the pin, write nothing.")
def command(context: Context, where: Where, version: str | None, to: Path | None, dry_run: bool) -> Report:
    """Check the stack's pin against its source; with VERSION, write the pin of that release.

    A new pin is learned from the archive that the package index (or --source) has now: look at its hash before you commit it.
    """
    from synctool.patches.pin import load_pin, render_pin
    from synctool.patches.release import learn_pin
    from synctool.whole_file import write_whole

    folder = where.folder()
    pin = load_pin(folder / "pin.toml")
    if version is None:
        source = where.open(pin)
        data = {
            "package": pin.package,
            "version": pin.version,
            "archive_sha256": pin.archive.sha256,
            "tree": source.tree_oid,
            "source": source.origin,
        }
        return Report(
            "patch pin",
            data,
            [f"{pin.label}: {pin.archive.files:,} files, tree {source.tree_oid} as pinned (from {source.origin})"],
        )
    target = (to or folder.parent / version) / "pin.toml"
    if target.exists() and not dry_run:
        raise UsageError(
            "there is a pin already", where=str(target), hint="remove it, or choose another folder with --to"
        )
    with tempfile.TemporaryDirectory(prefix="vime-sync-") as scratch:
        learned, _ = learn_pin(pin, version, Path(scratch), source=where.source, quiet=where.quiet)
    text = render_pin(learned)
    written: dict[str, Any] = {
        "written": None if dry_run else str(target),
        "pin": learned.model_dump(by_alias=True, exclude_none=True),
    }
    if dry_run:
        return Report("patch pin", written, [text, "dry run: nothing was written"])
    write_whole(target, text.encode())
    if not (target.parent / "series").exists():
        write_whole(target.parent / "series", b"")
    return Report("patch pin", written, [text, f"written: {target}"])
