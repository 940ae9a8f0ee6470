"""`vime toy`: the default run with other sizes; everything else on the command line goes to train.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--steps", default=40, show_default=True, help="Training steps.")
@click.option("--toy-seed", default=0, show_default=True, help="Seed of words, starting checkpoint and run.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def toy(steps: int, toy_seed: int, options: tuple[str, ...]) -> None:
    """Train the toy: reverse a five-letter word. OPTIONS are train.py's."""
    from vime.toy.flags import default_flags

    script = Path(__file__).resolve().parents[2] / "train.py"
    flags = [*default_flags(steps, toy_seed), *options]
    # This process becomes the driver, so that Ctrl-C and `vime stop` meet it.
    os.execv(sys.executable, [sys.executable, str(script), *flags])
