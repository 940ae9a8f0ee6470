"""Promises of the whole group: help and --json on every verb, a dry run on every one that writes, lazy imports."""

from __future__ import annotations

import importlib
import subprocess
import sys

import click
import pytest

from synctool.cli.patch import VERBS

WRITES = {"apply", "revert", "new", "edit", "refresh", "rebase", "drop", "import", "export", "pin"}


@pytest.mark.parametrize("name", VERBS)
def test_options_of_every_verb(name: str) -> None:
    command = importlib.import_module(VERBS[name][0]).command
    assert isinstance(command, click.Command)
    options = {word for parameter in command.params for word in parameter.opts}
    assert {"--json", "--quiet", "-C", "--stack", "--offline"} <= options
    assert ("--dry-run" in options) is (name in WRITES)
    assert (command.help or "").strip()


def test_group_help_imports_no_verb() -> None:
    code = (
        "import sys; from synctool.cli.app import cli\n"
        "try: cli.main(['patch', '--help'], standalone_mode=False)\nexcept SystemExit: pass\n"
        "bad = {'pydantic', 'unidiff', 'requests', 'pypi_simple', 'rich', 'synctool.patches.stack'} & set(sys.modules)\n"
        "sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_misspelt_verb_is_a_usage_error() -> None:
    done = subprocess.run([sys.executable, "-m", "synctool", "patch", "verfy"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "verify" in done.stderr
