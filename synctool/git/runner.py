"""Runs the git program in a scrubbed environment.

Repositories are untrusted input: their hooks, filters, fsmonitor, external diff and text conversion programs must never run, and the
user's own configuration must not change what a sync computes.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from synctool.errors import EnvironmentFailure, RepositoryError

#: Configuration that keeps git from running anything of the repository's, and from rewriting content.
SAFE_CONFIG = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.autocrlf=false",
    "core.quotePath=false",
    "core.commitGraph=true",
    "core.pager=cat",
    "core.askPass=true",
    "credential.helper=",
    "diff.external=",
    "diff.renameLimit=0",
    "gc.auto=0",
    "maintenance.auto=false",
    "protocol.ext.allow=never",
    "submodule.recurse=false",
    "uploadpack.packObjectsHook=",
    "commit.gpgSign=false",
    "tag.gpgSign=false",
    "log.showSignature=false",
    "safe.directory=*",
)

#: What to do about an object that is not there.
FULL_HISTORY = "fetch full history: a shallow or partial clone will not do; 'git fsck' names what is missing"
#: How git says that an object is not there, whatever command met it.
_OBJECT_MISSING = re.compile(
    r"unable to read|could not read|could not fetch|missing (blob|tree|commit|object)|bad object|object file .* is empty"
)


def scrubbed_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment git runs in: the caller's without any ``GIT_*`` variable, user or system configuration, prompts or locale."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment.update(
        GIT_CONFIG_NOSYSTEM="1",
        GIT_CONFIG_GLOBAL=os.devnull,
        GIT_TERMINAL_PROMPT="0",
        # A missing object must not start a transport of the repository's choosing (core.sshCommand of a promisor remote).
        GIT_ALLOW_PROTOCOL="none",
        GIT_OPTIONAL_LOCKS="0",
        GIT_NO_REPLACE_OBJECTS="1",
        GIT_LITERAL_PATHSPECS="1",
        LC_ALL="C",
        LANGUAGE="C",
    )
    if extra:
        environment.update(extra)
    return environment


def git_command(git_dir: Path, arguments: Sequence[str]) -> list[str]:
    """The full argument list for one git call on a repository."""
    command = ["git", f"--git-dir={git_dir}", "--no-pager"]
    for setting in SAFE_CONFIG:
        command += ["-c", setting]
    return [*command, *arguments]


def run_git(
    git_dir: Path,
    *arguments: str,
    stdin: bytes | None = None,
    check: bool = True,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run git on ``git_dir`` and return the finished process.

    Raises:
        EnvironmentFailure: git is not installed.
        RepositoryError: the command failed and ``check`` is set.
    """
    try:
        finished = subprocess.run(
            git_command(git_dir, arguments),
            input=stdin if stdin is not None else b"",
            capture_output=True,
            env=scrubbed_environment(environment),
            cwd=cwd or git_dir,
        )
    except FileNotFoundError as error:
        if not (cwd or git_dir).exists():
            raise RepositoryError("no such folder", where=str(cwd or git_dir)) from error
        raise EnvironmentFailure("git was not found", hint="install git 2.39 or newer") from error
    if check and finished.returncode:
        words = " ".join(arguments)
        said = finished.stderr.decode(errors="replace").strip() or f"exit status {finished.returncode}"
        hint = FULL_HISTORY if _OBJECT_MISSING.search(said) else None
        raise RepositoryError(f"git {words[:160]} failed: {said[:600]}", where=str(git_dir), hint=hint)
    return finished
