"""The `vime` command. Verbs are imported when used, so that `vime ps` does not load torch."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from vime.errors import VimeError

#: Verb -> (module, attribute, one line for the help).
VERBS = {
    "doctor": ("vime.cli.doctor", "doctor", "check this machine and say what to do"),
    "toy": ("vime.cli.toy", "toy", "run the default toy with other sizes"),
    "trace": ("vime.cli.trace", "trace", "a run as a Perfetto trace"),
    "report": ("vime.cli.report", "report", "a run as one HTML page"),
    "plot": ("vime.cli.plot", "plot", "draw the reward curve of a run"),
    "migrate-flags": ("vime.cli.migrate_flags", "migrate_flags", "rewrite a launch script of slime"),
    "audit": ("vime.cli.audit", "audit", "prove the fate of every prompt and sample of a run"),
    "ps": ("vime.cli.ps", "ps", "list runs and their processes on this host"),
    "stop": ("vime.cli.stop", "stop", "end a run and all its processes"),
}


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module, name, _ = VERBS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(verb, help) for verb, (_, _, help) in VERBS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        import difflib

        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], VERBS, n=1)
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean {near[0]!r}?", ctx) from None


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """vime: reinforcement learning with vLLM and Megatron-core. Training itself is `python train.py`."""


def main(argv: list[str] | None = None) -> None:
    """Entry point. A VimeError is one line and its exit code, not a traceback."""
    try:
        cli.main(args=argv, prog_name="vime", standalone_mode=True)
    except VimeError as error:
        print(error.render(), file=sys.stderr)
        raise SystemExit(error.exit_code) from None


def emit_json(verb: str, data: Any, exit_code: int = 0) -> None:
    """The machine form of a verb's result."""
    import json

    click.echo(json.dumps({"schema": "vime/1", "verb": verb, "exit_code": exit_code, "data": data}, indent=2))
