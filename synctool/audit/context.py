"""What the checks look at: the trees, the policy and the engine, with the questions that several checks ask."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath

from synctool.audit.engine.index import EngineIndex
from synctool.audit.engine.names import ModuleNames, module_names
from synctool.audit.files import Files, PythonFile
from synctool.git.commits import Commit
from synctool.git.diff import PathChange
from synctool.policy.model import Policy
from synctool.translate.translator import Translator

_CI_FOLDERS = (".buildkite/", ".github/workflows/", ".circleci/", ".ci/", "ci/")
_CI_NAMES = (".gitlab-ci.yml", "Jenkinsfile", "azure-pipelines.yml")


@dataclass(frozen=True, slots=True)
class Served:
    """Paths that a service other than the engine serves, as a person recorded them."""

    routes: tuple[str, ...]
    by: str


@dataclass
class Audit:
    """The inputs of every check.

    ``base`` and ``through`` are upstream before and after the range, in downstream's words and under downstream's paths; ``before`` is downstream
    before the sync; ``earlier_patches`` are the last other version of each of its patch files, as (path, content, commit that replaced it). What is not
    known is None, and the checks that need it are left out. ``image`` maps each distribution of the base image to its
    version and requirements.
    """

    policy: Policy
    translator: Translator
    tree: Files
    before: Files | None = None
    base: Files | None = None
    through: Files | None = None
    range_changes: tuple[PathChange, ...] = ()
    commits: tuple[Commit, ...] = ()
    earlier_patches: tuple[tuple[str, bytes, str], ...] = ()
    engine: EngineIndex | None = None
    served: tuple[Served, ...] = ()
    image: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    recorded: frozenset[str] = frozenset()

    @cached_property
    def changed(self) -> frozenset[str]:
        """Paths of the tree that the sync may have touched: those that differ from before, else those that the range touched."""
        if self.before is not None:
            return frozenset(p for p, entry in self.tree.entries.items() if self.before.entries.get(p) != entry)
        touched = {self.translator.path(change.path) for change in self.range_changes}
        return frozenset(path for path in touched if path in self.tree)

    def upstreams_own(self, path: str, line: int) -> bool:
        """Whether upstream's file has the same line at the end of the range: what is odd about it is not the sync's doing."""
        if self.through is None or path not in self.through:
            return False
        lines = self.tree.lines(path)
        return 1 <= line <= len(lines) and lines[line - 1] in self.through.line_set(path)

    @cached_property
    def own_folders(self) -> frozenset[str]:
        """Top-level folders that hold Python modules."""
        return frozenset(path.split("/")[0] for path in self.tree.entries if path.endswith(".py") and "/" in path)

    def own_module(self, module: str) -> str | None:
        """The file (or folder) of one of the tree's own modules; None when there is none."""
        base = module.replace(".", "/")
        for path in (f"{base}.py", f"{base}/__init__.py"):
            if path in self.tree:
                return path
        return base if base in self._folders else None

    def own_names(self, path: str) -> ModuleNames | None:
        """The top-level names of one of the tree's modules."""
        if path not in self._names:
            module = self.tree.python(path) if path.endswith(".py") else None
            self._names[path] = module_names(module) if module is not None else None
        return self._names[path]

    @cached_property
    def _names(self) -> dict[str, ModuleNames | None]:
        return {}

    @cached_property
    def _folders(self) -> frozenset[str]:
        return frozenset(str(up) for path in self.tree.ending(".py") for up in PurePosixPath(path).parents)

    @cached_property
    def ci_files(self) -> tuple[str, ...]:
        """Files that describe CI, and scripts that it generates its steps with."""
        return tuple(
            path
            for path in sorted(self.tree.entries)
            if (path.startswith(_CI_FOLDERS) or path in _CI_NAMES)
            and path.endswith((".yml", ".yaml", ".py", ".sh", "Jenkinsfile"))
        )

    @cached_property
    def scripts(self) -> tuple[str, ...]:
        """Shell scripts."""
        return tuple(
            path
            for path in self.tree.ending(".sh", ".bash") + [p for p in self.tree.entries if p.endswith("/justfile")]
        )

    @cached_property
    def documents(self) -> tuple[str, ...]:
        """Prose."""
        return tuple(self.tree.ending(".md", ".rst"))

    def modules(self) -> Iterator[PythonFile]:
        """Every Python file that parses."""
        return self.tree.modules()
