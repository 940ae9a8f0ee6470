"""A repository that tests fill with commits in one line each."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from synctool.git import Entry, Repo, Tree
from synctool.git.commits import Person, write_commit
from synctool.policy import parse_policy
from synctool.translate.translator import Translator

POLICY = """
schema = 1
[upstream]
name = "lantern"
url = "https://github.com/lamps/lantern"
[downstream]
name = "beacon"
[[family]]
from = "lantern"
to = "beacon"
[[owner]]
paths = ["/README.md"]
owner = "native"
reason = "our own front page"
[[owner]]
paths = ["/ported/"]
owner = "port"
reason = "rewritten here"
"""

Files = dict[str, bytes | str | tuple[str, bytes | str] | None]


class Story:
    """Writes commits straight into a real repository. A file's value is its content, or (mode, content); None deletes it."""

    def __init__(self, folder: Path) -> None:
        subprocess.run(["git", "init", "-q", "-b", "main", str(folder)], check=True)
        self.folder = folder
        self.repo = Repo.open(folder)
        self.clock = 1_700_000_000

    def commit(
        self, subject: str, files: Files | None = None, *parents: str, body: str = "", by_forge: bool = True
    ) -> str:
        """A commit on the first parent's tree; its id."""
        tree = Tree(self.repo.objects, self.repo.resolve(parents[0], "tree") if parents else None)
        for path, value in (files or {}).items():
            if value is None:
                assert tree.delete(path), path
                continue
            mode, content = value if isinstance(value, tuple) else ("100644", value)
            data = content.encode() if isinstance(content, str) else content
            tree.set(path, Entry(mode, self.repo.objects.write_blob(data)))
        self.clock += 60
        author = Person("Ada", "ada@example.org", self.clock)
        committer = Person("GitHub", "noreply@github.com", self.clock) if by_forge else author
        message = subject + (f"\n\n{body}" if body else "")
        return write_commit(
            self.repo.objects, tree=tree.write(), parents=parents, author=author, committer=committer, message=message
        )

    def files(self, revision: str) -> dict[str, bytes]:
        """All files of a commit."""
        return {path: self.repo.objects.read(entry.oid) for path, entry in self.repo.tree(revision).items()}

    def ref(self, name: str, oid: str) -> None:
        """Set a branch."""
        self.repo.run("update-ref", f"refs/heads/{name}", oid)

    def git(self, *arguments: str) -> str:
        """Plain git, as the judge."""
        return subprocess.run(
            ["git", "-C", str(self.folder), *arguments], check=True, capture_output=True, text=True
        ).stdout


@pytest.fixture
def story(tmp_path: Path):
    """An empty story."""
    made = Story(tmp_path / "repo")
    yield made
    made.repo.close()


@pytest.fixture(scope="session")
def policy():
    """Lantern becomes beacon."""
    return parse_policy(POLICY)


@pytest.fixture(scope="session")
def words(policy):
    """Its translator."""
    return Translator.from_policy(policy)
