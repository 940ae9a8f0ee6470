"""``vime-sync image base``."""

from __future__ import annotations

from pathlib import Path

import click

from synctool.cli.app import Context, verb
from synctool.cli.report import Report
from synctool.errors import NothingToDo


@click.command(name="base")
@click.option("--output", type=click.Path(path_type=Path), required=True, help="Folder of the layout.")
@click.option("--suite", default="bookworm", show_default=True, help="Debian release.")
@click.option("--mirror", default="http://deb.debian.org/debian", show_default=True, help="Where its packages are.")
@click.option("--arch", default="amd64", show_default=True, help="Debian's name of the architecture.")
@click.option("--dry-run", is_flag=True, help="Say what would be made; write nothing.")
@verb
def command(context: Context, output: Path, suite: str, mirror: str, arch: str, dry_run: bool) -> Report:
    """Make a base image from Debian's packages with debootstrap: Python, a compiler and git. Needs root.

    It is made once and kept: a base holds the packages of the day it was made, so candidates that shall be equal share one. Exit code 4 if it is there.
    """
    from synctool.cli.terminal import progress
    from synctool.images.base import PACKAGES, from_debian
    from synctool.images.oci import read_image

    if (output / "index.json").exists():
        raise NothingToDo(f"the base is there already: {read_image(output).digest}", where=str(output))
    data = {"layout": str(output), "suite": suite, "architecture": arch, "packages": list(PACKAGES), "dry_run": dry_run}
    if dry_run:
        return Report("image base", data, [f"would make {output} from {suite} ({arch}) with {', '.join(PACKAGES)}"])
    with progress(f"making a base from {suite}", quiet=context.quiet):
        image = from_debian(output, suite=suite, mirror=mirror, architecture=arch)
    return Report("image base", data | {"digest": image.digest}, [f"{output}: {image.digest}"])
