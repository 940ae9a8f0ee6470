"""``vime-sync image inspect``."""

from __future__ import annotations

from pathlib import Path

import click

from synctool.cli.app import Context, verb
from synctool.cli.report import Report


@click.command(name="inspect")
@click.argument("candidate", type=click.Path(path_type=Path))
@verb
def command(context: Context, candidate: Path) -> Report:
    """Show what a candidate is. Reads no layers: 'vime-sync image check' does."""
    from synctool.images.candidate import load

    known, image = load(candidate)
    layers = [layer.to_json() for layer in image.layers]
    size = sum(layer.size for layer in image.layers)
    lines = [f"{key:<9}{value}" for key, value in known.to_json().items()]
    return Report(
        "image inspect", known.to_json() | {"layers": layers}, [*lines, f"layers   {len(layers)}, {size / 1e6:,.0f} MB"]
    )
