"""Turns a mirror result into commits: one an upstream change, or one for the whole range, then one that holds what is still in conflict or how it was resolved.

Messages carry trailers, so that a later plan finds what is mirrored. Authors and their dates are upstream's; the committer is the person at work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from synctool.git.commits import Person, write_commit
from synctool.git.repo import Repo
from synctool.git.tree import Entry, Tree
from synctool.mirror.model import MirrorResult, Step
from synctool.plan.model import Change, Plan

MIRRORED_BY = "Mirrored-By"
UPSTREAM_COMMIT = "Upstream-Commit"
UPSTREAM_PR = "Upstream-PR"
#: Trailers of upstream's own that keep their meaning downstream.
_KEPT_TRAILERS = ("Co-authored-by", "Signed-off-by", "Reported-by", "Reviewed-by")


@dataclass(frozen=True, slots=True)
class Names:
    """The two projects' names and the person at work, for messages."""

    upstream: str
    downstream: str
    committer: Person
    tool: str

    @property
    def sign_off(self) -> str:
        """The Developer Certificate of Origin line of the person at work."""
        return f"Signed-off-by: {self.committer.name} <{self.committer.email}>"


def change_trailers(change: Change) -> list[str]:
    """``Upstream-Commit`` and, where it is known, ``Upstream-PR``."""
    lines = [f"{UPSTREAM_COMMIT}: {change.oid}"]
    if change.identity is not None:
        lines.append(f"{UPSTREAM_PR}: #{change.identity.number}")
    return lines


def step_message(step: Step, names: Names, subject: str) -> str:
    """The message of one mirrored change: its subject in downstream's words, what waits in a conflict, trailers."""
    body = [subject]
    if step.waiting:
        listed = "\n".join(f"- {path}" for path in sorted(set(step.waiting)))
        body.append(f"Edits to these files wait for a conflict to be resolved at the end of this sync:\n{listed}")
    trailers = change_trailers(step.change.change)
    trailers += [f"{key}: {value}" for key, value in step.change.change.commit.trailers if key in _KEPT_TRAILERS]
    trailers += [f"{MIRRORED_BY}: {names.tool}", names.sign_off]
    return "\n\n".join([*body, "\n".join(dict.fromkeys(trailers))])


def land_steps(
    repo: Repo, result: MirrorResult, names: Names, onto: str, subject_of: Mapping[str, str]
) -> tuple[str, dict[str, str]]:
    """One commit a change that altered the tree; returns the last commit and ``{upstream id: downstream commit}``.

    ``subject_of`` gives each change's subject in downstream's words. A change without effect (all its paths native, excluded or waiting) gets no commit.
    """
    tip, tree = onto, result.before
    landed: dict[str, str] = {}
    for step in result.steps:
        if step.tree == tree:
            continue
        commit = step.change.change.commit
        tip = write_commit(
            repo.objects,
            tree=step.tree,
            parents=[tip],
            author=commit.author,
            committer=names.committer,
            message=step_message(step, names, subject_of[commit.oid]),
        )
        tree = step.tree
        landed[commit.oid] = tip
    return tip, landed


def range_title(plan: Plan, names: Names) -> str:
    """``slime 44d29ee59..a897e1f40``, or the picked changes."""
    if plan.picks:
        return f"{names.upstream} " + ", ".join(item.change.label for item in plan.items[:6])
    return f"{names.upstream} {plan.base[:9] if plan.base else 'start'}..{plan.through[:9]}"


def _listed(changes: Sequence[Change], subject_of: Mapping[str, str]) -> str:
    return "\n".join(f"- {change.label} {subject_of[change.oid]}" for change in changes)


def squash_message(plan: Plan, result: MirrorResult, names: Names, subject_of: Mapping[str, str]) -> str:
    """The message of the one commit of a squashed sync."""
    changes = [step.change.change for step in result.steps]
    trailers = [line for change in changes for line in change_trailers(change)]
    body = [f"Mirror {range_title(plan, names)}", _listed(changes, subject_of)]
    if result.conflicts:
        body.append(f"{len(result.conflicts)} files are in conflict and keep markers; the next commit resolves them.")
    return "\n\n".join([*body, "\n".join([*trailers, f"{MIRRORED_BY}: {names.tool}", names.sign_off])])


def final_message(
    title: str,
    names: Names,
    *,
    unlanded: Sequence[str],
    open_paths: Sequence[str],
    resolved: Mapping[str, str],
) -> str:
    """The message of the last commit: conflicts that are open (work in progress) or how each was resolved.

    ``unlanded`` are the trailers of changes that have no commit of their own.
    """
    if open_paths:
        body = [f"WIP: {title}: {len(open_paths)} files in conflict"]
        body.append("\n".join(f"- {path}" for path in open_paths))
    else:
        body = [f"Resolve the conflicts of {title}" if resolved else f"Record the sync of {title}"]
    if resolved:
        body.append("Resolved:\n" + "\n".join(f"- {path}: {how}" for path, how in sorted(resolved.items())))
    trailers = list(unlanded) if not open_paths else []
    if resolved and not open_paths:
        trailers.append(f"Conflicts-Resolved-By: {names.committer.name} <{names.committer.email}>")
    return "\n\n".join([*body, "\n".join([*trailers, f"{MIRRORED_BY}: {names.tool}", names.sign_off])])


def place(tree: Tree, path: str, entry: Entry | None) -> None:
    """Put a file at a path of a tree, or take it away."""
    if entry is None:
        tree.delete(path)
    else:
        tree.set(path, entry)


def land(repo: Repo, tree: str, parent: str, names: Names, message: str) -> str:
    """One commit by the person at work."""
    person = names.committer
    return write_commit(repo.objects, tree=tree, parents=[parent], author=person, committer=person, message=message)
