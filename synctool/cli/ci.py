"""``vime-sync ci``: the group of verbs about the Buildkite pipeline."""

from __future__ import annotations

import click

from synctool.cli.app import LazyGroup

VERBS: dict[str, tuple[str, str]] = {
    "generate": ("synctool.cli.ci_generate", "Write the pipeline from its description."),
    "check": ("synctool.cli.ci_check", "Check the pipeline: stale, tests missing or listed twice, files gone."),
    "register": ("synctool.cli.ci_register", "Add a test to a step, in place."),
}


@click.group(name="ci", cls=LazyGroup, verbs=VERBS)
def command() -> None:
    """The Buildkite pipeline, written from one description (.buildkite/steps.toml) whose commands are lists of arguments.

    Each step raises the soft limit of open files and logs it; only a lost agent is tried again; GPU suites wait behind a block step.
    """
