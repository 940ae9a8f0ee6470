"""Two generated histories in one repository: upstream *lantern* (burns Kerosene) and downstream *beacon* (runs on Photon)."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from synctool.git.commits import Person, read_commits, write_commit
from synctool.git.repo import Repo
from synctool.git.tree import Entry, Tree
from synctool.mirror.engine import mirror
from synctool.mirror.memory import Memory
from synctool.mirror.model import MirrorResult
from synctool.plan.identity import identify_all
from synctool.plan.model import Decision, Kind, Plan, PlannedChange
from synctool.plan.span import changes_between
from synctool.policy.loading import parse_policy
from synctool.policy.model import Policy
from synctool.translate.translator import Translator

POLICY = """
schema = 1
[upstream]
name = "lantern"
[downstream]
name = "beacon"
[[family]]
from = "lantern"
to = "beacon"
[[family]]
from = "Kerosene"
to = "Photon"
[[flag]]
from = "--kerosene-tank"
to = "--photon-buffer"
[[owner]]
paths = ["/native/"]
owner = "native"
reason = "written here"
[[owner]]
paths = ["/left/"]
owner = "exclude"
reason = "not wanted"
[[owner]]
paths = ["/ported/"]
owner = "port"
reason = "rewritten here"
"""

#: What a path becomes in a commit: content, (mode, content), a ready entry, or None to delete it.
Content = str | bytes | tuple[str, bytes] | Entry | None


class World:
    """A bare repository with both histories. ``up`` and ``down`` are the newest commits."""

    def __init__(self, folder: Path, policy: str = POLICY) -> None:
        subprocess.run(["git", "init", "-q", "--bare", str(folder)], check=True)
        self.repo = Repo.open(folder)
        self.policy: Policy = parse_policy(policy)
        self.translator = Translator.from_policy(self.policy)
        self.up = self.down = self.base = ""
        self._clock = 1_700_000_000

    def start(self, files: Mapping[str, Content]) -> None:
        """The common beginning: upstream's first commit, and downstream's fork of it, fully translated."""
        self.base = self.up = self._commit(files, None, "Begin")
        translated: dict[str, Content] = {}
        for path, entry in self.repo.tree(self.base).items():
            target = self.translator.path(path)
            data = self.repo.objects.read(entry.oid)
            translated[target] = (entry.mode, self.translator.content(data, target))
            if target != path:
                translated[path] = None
        self.down = self._commit(translated, self.base, "Fork")

    def upstream(self, files: Mapping[str, Content], message: str = "Change") -> str:
        """One upstream change."""
        self.up = self._commit(files, self.up, message)
        return self.up

    def downstream(self, files: Mapping[str, Content], message: str = "Our change") -> str:
        """One downstream commit."""
        self.down = self._commit(files, self.down, message)
        return self.down

    def upstream_tree(self, tree: str, message: str = "Raw tree") -> str:
        """An upstream change with a ready-made (perhaps hostile) tree."""
        self.up = self._write(tree, self.up, message)
        return self.up

    def _commit(self, files: Mapping[str, Content], parent: str | None, message: str) -> str:
        tree = self.repo.tree(parent) if parent else Tree(self.repo.objects)
        for path, content in files.items():
            if content is None:
                tree.delete(path)
                continue
            if isinstance(content, Entry):
                tree.set(path, content)
                continue
            mode, data = content if isinstance(content, tuple) else ("100644", content)
            raw = data.encode() if isinstance(data, str) else data
            tree.set(path, Entry(mode, self.repo.objects.write_blob(raw)))
        return self._write(tree.write(), parent, message)

    def _write(self, tree: str, parent: str | None, message: str) -> str:
        self._clock += 60
        person = Person("A", "a@example.org", self._clock)
        return write_commit(
            self.repo.objects,
            tree=tree,
            parents=[parent] if parent else [],
            author=person,
            committer=person,
            message=message,
        )

    def plan(self, excluded: tuple[str, ...] = ()) -> Plan:
        """All upstream changes since the beginning, the excluded ones left out."""
        changes = identify_all(changes_between(self.repo, self.base, self.up))
        items = tuple(
            PlannedChange(change, Decision(Kind.EXCLUDE if change.oid in excluded else Kind.TAKE)) for change in changes
        )
        return Plan(self.base, self.up, self.down, items)

    def mirror(
        self, *, excluded: tuple[str, ...] = (), memory: Memory | None = None, repo: Repo | None = None
    ) -> MirrorResult:
        """Run the engine on downstream's newest commit."""
        return mirror(repo or self.repo, self.policy, self.translator, self.plan(excluded), self.down, memory=memory)

    def read(self, tree: str, path: str) -> str | None:
        """A file's text in a tree, or None."""
        entry = self.repo.tree(tree).get(path)
        return None if entry is None else self.repo.objects.read(entry.oid).decode("utf-8", "surrogateescape")

    def subject(self, commit: str) -> str:
        """A commit's subject."""
        return read_commits(self.repo.objects, [commit])[0].subject


def numbered(count: int, **changed: str) -> str:
    """``count`` lines, ``l3="..."`` replaces the third; an empty text removes it."""
    lines = [changed.get(f"l{number}", f"line {number}") for number in range(1, count + 1)]
    return "".join(f"{line}\n" for line in lines if line)
