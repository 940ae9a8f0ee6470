"""A running sync as a value: its commits, its conflicts and how they were resolved. ``steps`` lead from one to the next, ``store`` keeps them.

A session goes from *conflicts* (some file needs a person) to *finished*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from synctool.errors import UsageError
from synctool.git.tree import Entry
from synctool.mirror.model import Conflict
from synctool.mirror.store import damaged

#: Ways to resolve. ``edited`` is a file that a person wrote, by --file or in a checkout of the sync's branch.
SIDES = ("ours", "theirs", "base")


@dataclass(frozen=True, slots=True)
class Resolution:
    """How one file was resolved so far.

    ``entry`` is the whole file's outcome (None: no such file), valid when ``whole``; else ``choices`` holds the text chosen for some of its hunks, by number.
    """

    how: str
    who: str
    whole: bool = True
    entry: Entry | None = None
    choices: Mapping[int, bytes] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "how": self.how,
            "who": self.who,
            "whole": self.whole,
            "entry": list(self.entry) if self.entry else None,
            "choices": {str(n): text.decode("utf-8", "surrogateescape") for n, text in self.choices.items()},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Resolution:
        """The inverse of ``to_json``."""
        choices = {int(n): text.encode("utf-8", "surrogateescape") for n, text in value["choices"].items()}
        entry = Entry(*value["entry"]) if value["entry"] else None
        return cls(value["how"], value["who"], value["whole"], entry, choices)


@dataclass(frozen=True)
class Session:
    """Everything about one sync.

    ``onto`` is the downstream commit it started from, ``chain`` the last commit of mirrored changes, ``tree`` the result's tree with every conflict in
    place, ``tip`` what the sync's branch points to. ``landed`` maps upstream to downstream commits, ``unlanded`` holds the trailers of changes without a
    commit of their own. ``options`` are what planning the range again needs.
    """

    branch: str
    branch_before: str | None
    onto: str
    chain: str
    tree: str
    tip: str
    phase: str
    squash: bool
    record: bool
    title: str
    plan: dict[str, Any]
    landed: dict[str, str]
    unlanded: tuple[str, ...]
    conflicts: tuple[Conflict, ...]
    resolutions: dict[str, Resolution] = field(default_factory=dict)
    work: tuple[dict[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()
    skipped: dict[str, dict[str, str]] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """JSON values, as ``store.save`` takes them."""
        value = {name: getattr(self, name) for name in self.__dataclass_fields__}
        value["conflicts"] = [conflict.to_json() for conflict in self.conflicts]
        value["resolutions"] = {path: resolution.to_json() for path, resolution in self.resolutions.items()}
        value |= {name: list(value[name]) for name in ("work", "warnings", "unlanded")}
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Session:
        """The inverse of ``to_json``.

        Raises:
            RepositoryError: the value was not made by it.
        """
        try:
            return cls._from_json(value)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise damaged(f"{type(error).__name__}: {error}") from error

    @classmethod
    def _from_json(cls, value: Mapping[str, Any]) -> Session:
        known = {name: value[name] for name in cls.__dataclass_fields__}
        known["conflicts"] = tuple(Conflict.from_json(c) for c in value["conflicts"])
        known["resolutions"] = {path: Resolution.from_json(r) for path, r in value["resolutions"].items()}
        known |= {name: tuple(value[name]) for name in ("work", "warnings", "unlanded")}
        return cls(**known)

    def conflict(self, path: str) -> Conflict:
        """The conflict at a path.

        Raises:
            UsageError: there is none.
        """
        for conflict in self.conflicts:
            if path in (conflict.path, conflict.upstream_path):
                return conflict
        raise UsageError(f"{path} is not in conflict", hint="'vime-sync conflicts' lists the files that are")

    def open_conflicts(self) -> list[Conflict]:
        """Conflicts without a whole resolution."""
        return [c for c in self.conflicts if not self.is_resolved(c)]

    def is_resolved(self, conflict: Conflict) -> bool:
        """Whether nothing of a conflict is left to decide."""
        resolution = self.resolutions.get(conflict.path)
        if resolution is None:
            return False
        return resolution.whole or len(resolution.choices) >= len(conflict.hunks)

    def needs(self) -> list[str]:
        """Commits that must not be pruned while the session lives."""
        return [self.tip, self.chain, self.onto, str(self.plan["through"])]

    def held_files(self) -> dict[str, Entry]:
        """Blobs that must not be pruned either: sides of conflicts and diffs filed as work, under made-up paths."""
        files: dict[str, Entry] = {}
        for number, conflict in enumerate(self.conflicts):
            for name in ("base", "ours", "theirs", "marked"):
                entry: Entry | None = getattr(conflict, name)
                if entry is not None and entry.mode != "160000":
                    files[f"held/{number}/{name}"] = entry
        for number, item in enumerate(self.work):
            files[f"held/work/{number}"] = Entry("100644", item["diff"])
        return files
