"""Finds running processes that use a package's files, so that nobody patches code under a live engine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class User:
    """A process that uses the package: its id, how that is known, and its command line (cut)."""

    pid: int
    why: str
    command: str


def users_of(package: Path) -> list[User] | None:
    """Processes with a file of ``package`` mapped or open, or that run it as a program of the same environment.

    None where that cannot be found out (no ``/proc``). Pure Python modules are read and closed, so a process that imported only those shows by
    its command line: a module or script of the package, or a title that its engine set.
    """
    proc = Path("/proc")
    if not (proc / "self" / "maps").exists():
        return None
    found = []
    for folder in proc.iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        why = _why(folder, package)
        if why:
            command = _read(folder / "cmdline").replace(b"\0", b" ").decode("utf-8", "replace").strip()
            found.append(User(int(folder.name), why, command[:120]))
    return sorted(found, key=lambda user: user.pid)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it ended, or it is another user's
        return b""


def _why(folder: Path, package: Path) -> str | None:
    prefix = os.fsencode(str(package)) + b"/"
    if prefix in _read(folder / "maps"):
        return "has a library of it loaded"
    try:
        for handle in (folder / "fd").iterdir():
            if os.fsencode(os.readlink(handle)).startswith(prefix):  # noqa: PTH115
                return "has a file of it open"
    except OSError:
        pass
    words = _read(folder / "cmdline").split(b"\0")
    if not _same_environment(folder, words, package):
        return None
    name = package.name.encode()
    if words[0].startswith(name.upper() + b"::"):
        return "is an engine process"
    for at, word in enumerate(words[1:4], 1):
        if word.startswith(prefix) or (words[at - 1] == b"-m" and word.split(b".")[0] == name):
            return "runs it"
        if os.path.basename(word) == name and os.path.basename(os.path.dirname(word)) in (b"bin", b"Scripts"):  # noqa: PTH119, PTH120
            return "runs it"
    return None


def _same_environment(folder: Path, words: list[bytes], package: Path) -> bool:
    """Whether a process belongs to the environment that the package is installed in, as far as can be told."""
    environment = package.parent
    for parent in package.parents:
        if (parent / "bin").is_dir() and (parent / "lib").is_dir():
            environment = parent
            break
    root = os.fsencode(str(environment)) + b"/"
    if any(word.startswith(root) for word in words[:3]):
        return True
    variables = _read(folder / "environ").split(b"\0")
    if b"VIRTUAL_ENV=" + root[:-1] in variables:
        return True
    return any(
        v.startswith(b"PYTHONPATH=") and os.fsencode(str(package.parent)) in v.split(b"=", 1)[1].split(b":")
        for v in variables
    )
