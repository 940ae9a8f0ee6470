"""`vime toy`: the default run with other sizes; everything else on the command line goes to train.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--steps", default=40, show_default=True, help="Training steps.")
@click.option("--toy-seed", default=0, show_default=True, help="Seed of words, starting checkpoint and run.")
@click.option(
    "--size",
    type=click.Choice(["small", "large"]),
    default="small",
    show_default=True,
    help="0.8 or 57 million parameters.",
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def toy(steps: int, toy_seed: int, size: str, options: tuple[str, ...]) -> None:
    """Train the toy: reverse a word of five letters, or of ten (large, for a GPU). OPTIONS are train.py's."""
    from vime.toy.flags import default_flags
    from vime.toy.sizes import SIZES

    script = Path(__file__).resolve().parents[2] / "train.py"
    flags = [*default_flags(steps, toy_seed, size=SIZES[size]), *options]
    # This process becomes the driver, so that Ctrl-C and `vime stop` meet it.
    os.execv(sys.executable, [sys.executable, str(script), *flags])
