"""One repository: where its parts are, how to run git on it, how to name revisions."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from synctool.errors import RepositoryError
from synctool.git.objects import ObjectStore
from synctool.git.runner import run_git
from synctool.git.tree import Tree

_FULL_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


class Repo:
    """A git repository, opened by its folder, work tree or git directory."""

    def __init__(
        self, git_dir: Path, common_dir: Path, work_tree: Path | None, algorithm: str, *, dry: bool = False
    ) -> None:
        self.git_dir = git_dir
        #: Shared by all work trees: objects, refs and our own state live here.
        self.common_dir = common_dir
        self.work_tree = work_tree
        self.algorithm = algorithm
        #: In a dry repository written objects stay in memory and ref updates are refused.
        self.dry = dry

    @classmethod
    def open(cls, path: str | Path, *, dry: bool = False) -> Repo:
        """Open the repository that contains ``path``.

        Raises:
            RepositoryError: there is none.
        """
        path = Path(path).expanduser().absolute()
        git_dir = _find_git_dir(path)
        if git_dir is None:
            raise RepositoryError(
                "not a git repository", where=str(path), hint="run inside a clone, or name one with -C"
            )
        common = git_dir
        pointer = git_dir / "commondir"
        if pointer.is_file():
            common = (git_dir / pointer.read_text().strip()).resolve()
        finished = run_git(git_dir, "rev-parse", "--show-object-format", "--is-bare-repository")
        algorithm, bare = finished.stdout.decode().split()
        work_tree = None if bare == "true" else _work_tree(git_dir, path)
        return cls(git_dir, common, work_tree, algorithm, dry=dry)

    def run(
        self,
        *arguments: str,
        stdin: bytes | None = None,
        check: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run git here (see ``run_git``)."""
        return run_git(self.git_dir, *arguments, stdin=stdin, check=check, environment=environment)

    def text(self, *arguments: str) -> str:
        """Standard output of a git call, decoded, without the final newline."""
        return self.run(*arguments).stdout.decode("utf-8", "surrogateescape").rstrip("\n")

    @cached_property
    def objects(self) -> ObjectStore:
        """The object reader and writer."""
        return ObjectStore(self.git_dir, self.common_dir / "objects", algorithm=self.algorithm, dry=self.dry)

    def close(self) -> None:
        """End helper processes."""
        if "objects" in self.__dict__:
            self.objects.close()

    def resolve(self, revision: str, kind: str = "commit") -> str:
        """The full id that a revision names.

        Raises:
            RepositoryError: it names nothing here, or something of another kind.
        """
        if revision.startswith("-") or "\n" in revision or "\0" in revision:
            raise RepositoryError(f"{revision!r} is not a revision", where=str(self.git_dir))
        if _FULL_ID.fullmatch(revision):
            # The reader that runs anyway knows it: a git process for each of a long sync's commits is what takes time there.
            known = self.objects.info(f"{revision}^{{{kind}}}")
            if known is not None:
                return known[0]
        finished = self.run(
            "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{{kind}}}", check=False
        )
        if finished.returncode:
            hint = "fetch it first, or check the spelling"
            if self._is_unborn(revision):
                hint = "make a first commit: HEAD's branch has none yet"
            elif self.is_shallow:
                hint = "this clone is shallow: fetch full history with 'git fetch --unshallow'"
            raise RepositoryError(f"no {kind} is named {revision!r}", where=str(self.git_dir), hint=hint)
        return finished.stdout.decode().strip()

    def _is_unborn(self, revision: str) -> bool:
        return revision == "HEAD" and self.head_branch() is not None

    @property
    def is_shallow(self) -> bool:
        """Whether history was cut when this was cloned."""
        return (self.common_dir / "shallow").is_file()

    def head_branch(self) -> str | None:
        """The full name of the checked-out branch (it may be unborn), or None when HEAD is detached."""
        finished = self.run("symbolic-ref", "--quiet", "HEAD", check=False)
        return finished.stdout.decode().strip() or None

    def tree(self, revision: str) -> Tree:
        """The tree of a commit or tree-ish."""
        return Tree(self.objects, self.resolve(revision, "tree"))

    def is_ancestor(self, ancestor: str, descendant: str) -> bool:
        """Whether the first commit is reachable from the second."""
        return self.run("merge-base", "--is-ancestor", ancestor, descendant, check=False).returncode == 0


def _find_git_dir(path: Path) -> Path | None:
    """The git directory of ``path``: itself when bare, else the nearest ``.git`` above it (a folder, or a file that points to one)."""
    if _looks_like_git_dir(path):
        return path
    for folder in (path, *path.parents):
        candidate = folder / ".git"
        if candidate.is_file():
            pointer = candidate.read_text(errors="replace").strip()
            if pointer.startswith("gitdir:"):
                target = (folder / pointer.removeprefix("gitdir:").strip()).resolve()
                return target if _looks_like_git_dir(target) else None
        if _looks_like_git_dir(candidate):
            return candidate
        if folder != path and _looks_like_git_dir(folder):
            return folder
    return None


def _looks_like_git_dir(path: Path) -> bool:
    return (path / "HEAD").is_file() and ((path / "objects").is_dir() or (path / "commondir").is_file())


def _work_tree(git_dir: Path, path: Path) -> Path | None:
    """The checkout that belongs to a git directory."""
    pointer = git_dir / "gitdir"
    if pointer.is_file():  # a linked work tree
        return Path(pointer.read_text().strip()).parent
    if git_dir.name == ".git":
        return git_dir.parent
    for folder in (path, *path.parents):
        if (folder / ".git").is_file():  # a submodule
            return folder
    return None
