"""The real ssh with a configuration of the test's own."""

from __future__ import annotations

import shutil
from pathlib import Path


def configured_ssh(commands: Path, config: str) -> None:
    """Write a program `ssh` into the folder `commands`, for PATH: it reads `config` instead of what whoever runs the tests has."""
    (commands / "config").write_text(config)
    script = commands / "ssh"
    script.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {commands / "config"} "$@"\n')
    script.chmod(0o755)
