"""Our commands in processes of their own, forked from one interpreter that has imported them.

Starting Python and importing the tool takes longer than most verbs do, and tests call hundreds of them. All else is as in
``subprocess.run([sys.executable, "-m", "synctool", ...])``: own arguments, folder, environment, streams and exit code, and a
signal ends this one process. What a fresh start itself promises (which modules ``--help`` imports, a reader that leaves) is tested with fresh starts.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from synctool.cli.app import VERBS, main

_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(["tests.preloaded", *(module for module, _ in VERBS.values())])


def _replace(descriptor: int, path: str, flags: int) -> None:
    opened = os.open(path, flags, 0o600)
    os.dup2(opened, descriptor)
    os.close(opened)


def _run(
    function: Callable[[list[str]], None], words: list[str], cwd: str, environment: dict[str, str], out: str, err: str
) -> None:
    _replace(0, os.devnull, os.O_RDONLY)
    _replace(1, out, os.O_WRONLY | os.O_CREAT)
    _replace(2, err, os.O_WRONLY | os.O_CREAT)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["vime-sync", *words]
    function(words)


def call(
    *words: str,
    function: Callable[[list[str]], None] = main,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """``vime-sync WORDS...``, or a function of a module that is given the words, to its end; what it printed and its exit code.

    The exit code of a process that a signal ended is the signal's number, negative.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        environment = dict(os.environ if env is None else env)
        process = _FORKED.Process(
            target=_run, args=(function, list(words), str(cwd or Path.cwd()), environment, str(out), str(err))
        )
        process.start()
        try:
            process.join()
        finally:
            process.kill()
        assert process.exitcode is not None
        return subprocess.CompletedProcess(list(words), process.exitcode, out.read_text(), err.read_text())
