"""``vime-sync patch revert``."""

from __future__ import annotations

from pathlib import Path

import click

from synctool.cli.app import Context, verb
from synctool.cli.patch_common import Where, site_option, stack_options
from synctool.cli.report import Report
from synctool.errors import NothingToDo


@click.command(name="revert")
@verb
@stack_options
@site_option
@click.option("--dry-run", is_flag=True, help="Say what would be taken out; write nothing.")
def command(context: Context, where: Where, site_packages: str | None, python: str | None, dry_run: bool) -> Report:
    """Take the stack out of an environment's package: originals, and the distribution's file list, come back to the byte.

    Needs neither the source nor the network: the originals were kept.
    """
    from synctool.patches import install
    from synctool.patches.pin import load_pin
    from synctool.patches.target import find_target

    pin = load_pin(where.folder() / "pin.toml")
    target = find_target(pin.import_name, Path(site_packages) if site_packages else None, python)
    if dry_run:
        record = install.look(target).record
        if record is None:
            raise NothingToDo("no stack is applied", where=str(target.package))
    else:
        record = install.revert(target)
    data = {"package": str(target.package), "digest": record.digest, "files": sorted(record.files), "dry_run": dry_run}
    did = "would be taken out: " if dry_run else "taken out: "
    return Report(
        "patch revert", data, [f"{target.package}: {did}stack {record.digest[:16]}, {len(record.files)} files"]
    )
