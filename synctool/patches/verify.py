"""Everything that must hold of a stack on its pin, as one value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from synctool.git.tree import Tree
from synctool.patches.export import diff_trees
from synctool.patches.gate import GateResult, Interpreter, python_files, run_gate
from synctool.patches.referee import git_applies
from synctool.patches.stack import Application, Stack, try_stack
from synctool.patches.store import PinnedSource

Scope = Literal["package", "all", "changed"]


@dataclass(frozen=True, slots=True)
class Verification:
    """How the stack applies, what the gate found (None when there was nothing to parse), patches not in canonical form, trees on which git differs."""

    application: Application
    gate: GateResult | None
    drift: list[str] = field(default_factory=list)
    disagreements: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Everything holds."""
        gate_passed = self.gate is None or self.gate.passed
        return self.application.error is None and gate_passed and not self.drift and not self.disagreements


def changed_paths(application: Application) -> list[str]:
    """Paths that the applied patches wrote, sorted."""
    return sorted(
        {o.change.new_path for step in application.steps for o in step.outcomes if o.change.new_path is not None}
    )


def verify_stack(
    stack: Stack,
    source: PinnedSource,
    *,
    interpreter: Interpreter,
    scope: Scope = "package",
    use_cache: bool = True,
    drift: bool = False,
    referee: bool = False,
) -> Verification:
    """Apply the stack and look at the result. ``drift`` and ``referee`` need a source that is not dry.

    The gate looks at the importable package and all changed files (``package``), the whole archive (``all``) or the changed files only.
    """
    application = try_stack(source.tree, stack.patches, stack.pin.allowed)
    tree = Tree(source.repo.objects, application.tree)
    changed = changed_paths(application)
    known = dict(python_files(tree, {"package": stack.pin.import_name, "all": ""}[scope])) if scope != "changed" else {}
    for path in changed:
        entry = tree.get(path)
        if path.endswith(".py") and entry is not None:
            known[path] = entry
    gate = None
    if known or scope != "changed":
        gate = run_gate(tree, list(known.items()), changed=changed, interpreter=interpreter, use_cache=use_cache)
    drifted, disagreements = [], []
    for step in application.steps:
        if drift and diff_trees(source.repo, step.before, step.after) != step.patch.data[len(step.patch.text.header) :]:
            drifted.append(step.patch.name)
        if referee:
            said = git_applies(source.repo, step.before, step.patch.data)
            if said.tree != step.after:
                disagreements.append(f"{step.patch.name}: {said.tree or said.message}")
    return Verification(application, gate, drifted, disagreements)
