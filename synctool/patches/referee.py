"""Git's own ``apply`` as the judge of ours: the same patch, on a throw-away index."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

from synctool.git.repo import Repo


class Verdict(NamedTuple):
    """The tree that git made, or None and what it said."""

    tree: str | None
    message: str


def git_applies(repo: Repo, tree: str, patch: bytes) -> Verdict:
    """Apply a patch file with ``git apply --cached`` to a written tree."""
    with tempfile.TemporaryDirectory(prefix="vime-sync-") as folder:
        environment = {"GIT_INDEX_FILE": str(Path(folder, "index"))}
        repo.run("read-tree", tree, environment=environment)
        done = repo.run(
            "apply", "--cached", "--whitespace=nowarn", "-", stdin=patch, check=False, environment=environment
        )
        if done.returncode:
            return Verdict(None, done.stderr.decode(errors="replace").strip())
        return Verdict(repo.run("write-tree", environment=environment).stdout.decode().strip(), "")
