"""Runs one vime-sync verb and kills the process (SIGKILL) right before or after its n-th effect.

Effects are what changes the disk: objects written, refs moved, files replaced, processes that git runs for us. The first word is n, the rest is the command
line.
Exit status 77 means that the verb has fewer than n effects (it ran to its end and succeeded).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from synctool.cli import app
from synctool.git.objects import ObjectStore

LEFT = 0


def tick() -> None:
    """Count one boundary, and die at the chosen one."""
    global LEFT
    LEFT -= 1
    if LEFT == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def around(owner: Any, name: str, wanted: Any = None) -> None:
    """Let a function tick before and after it runs."""
    original = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if wanted is not None and not wanted(args):
            return original(*args, **kwargs)
        tick()
        result = original(*args, **kwargs)
        tick()
        return result

    setattr(owner, name, wrapped)


def moves_refs(args: tuple[Any, ...]) -> bool:
    """Whether a process is a ref update."""
    return bool(args) and isinstance(args[0], list) and "update-ref" in args[0]


def is_no_object(args: tuple[Any, ...]) -> bool:
    """Whether a file gets a name that git does not give an object: of those there are many, and commits are counted where they are written."""
    return "/objects/" not in str(args[1])


def main(words: list[str]) -> None:
    """Only for a process of its own: what it counts is replaced for good."""
    global LEFT
    LEFT = int(words[0])
    around(subprocess, "run", moves_refs)
    around(ObjectStore, "write", lambda args: args[1] == "commit")
    around(os, "replace", is_no_object)
    around(Path, "replace", is_no_object)
    try:
        app.main(words[1:])
    except SystemExit as ended:
        sys.exit(77 if LEFT > 0 and ended.code in (0, 1) else ended.code)
