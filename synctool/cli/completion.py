"""``vime-sync completion``: the script that makes a shell complete verbs and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from synctool.cli.app import Context, cli, verb
from synctool.cli.report import Report


@click.command(name="completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@verb
def command(context: Context, shell: str) -> Report:
    """Print the completion script of SHELL.

    For bash: eval "$(vime-sync completion bash)" in ~/.bashrc.
    """
    maker = get_completion_class(shell)
    assert maker is not None
    script = maker(cli, {}, "vime-sync", "_VIME_SYNC_COMPLETE").source()
    return Report("completion", {"shell": shell, "script": script}, summary=[script])
