"""What the verbs of a running sync share: loading and saving the session, the names that go into commits, how its state is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from synctool import __version__
from synctool.cli.inputs import Inputs, load
from synctool.errors import Exit
from synctool.git.commits import Person
from synctool.git.repo import Repo
from synctool.mirror import store
from synctool.mirror.landing import Names
from synctool.mirror.session import Session

if TYPE_CHECKING:
    from synctool.mirror.model import Conflict

TOOL = f"vime-sync {__version__}"


@dataclass
class Running:
    """A session with where it is stored."""

    repo: Repo
    state: store.StateCommit
    session: Session

    @property
    def inputs(self) -> Inputs:
        """The policy that the sync was started with."""
        given = self.session.options.get("policy")
        return load(self.repo, Path(given) if given else None)


def running(repo: Repo) -> Running:
    """The session that waits for a person.

    Raises:
        RepositoryError: none does.
    """
    state = store.require(repo)
    return Running(repo, state, Session.from_json(state.value))


def names_for(repo: Repo, inputs: Inputs) -> Names:
    """The projects' names and the person at work, now."""
    policy = inputs.policy
    return Names(policy.upstream.name, policy.downstream.name, Person.now(*store.who(repo)), TOOL)


def save(repo: Repo, session: Session, step: str, previous: store.StateCommit | None) -> store.StateCommit:
    """Store the session as the next state and move its branch."""
    return store.save(
        repo, session.to_json(), step, needs=session.needs(), previous=previous, held=session.held_files()
    )


def short(branch: str) -> str:
    """A branch as people write it."""
    return branch.removeprefix("refs/heads/")


def conflict_json(session: Session, conflict: Conflict) -> dict[str, Any]:
    """One conflict without its texts."""
    resolution = session.resolutions.get(conflict.path)
    labels = {change["commit"]: change for change in session.plan["changes"]}
    return {
        "path": conflict.path,
        "upstream_path": conflict.upstream_path,
        "kind": str(conflict.kind),
        "hunks": len(conflict.hunks),
        "chosen_hunks": sorted(resolution.choices) if resolution else [],
        "resolved": session.is_resolved(conflict),
        "how": resolution.how if resolution else None,
        "proposals": {note.number: [p.kind for p in note.proposals if p.offered] for note in conflict.hunks},
        "changes": [label(labels, oid) for oid in conflict.changes],
        "note": conflict.note,
    }


def label(changes: dict[str, Any], oid: str) -> str:
    """``#12`` or a short id."""
    pr = changes.get(oid, {}).get("pr")
    return f"#{pr['number']}" if pr else oid[:9]


def session_json(session: Session) -> dict[str, Any]:
    """A session as the verbs report it."""
    return {
        "phase": session.phase,
        "branch": session.branch,
        "tip": session.tip,
        "onto": session.onto,
        "title": session.title,
        "base": session.plan["base"],
        "through": session.plan["through"],
        "squash": session.squash,
        "commits": len(set(session.landed.values())),
        "counts": session.plan["counts"],
        "conflicts": [conflict_json(session, conflict) for conflict in session.conflicts],
        "open": len(session.open_conflicts()),
        "work": [{k: v for k, v in item.items() if k != "diff"} for item in session.work],
        "skipped": session.skipped,
        "warnings": list(session.warnings),
    }


def next_step(session: Session) -> str:
    """What a person does now."""
    if session.phase == "finished":
        return f"done: {short(session.branch)} holds the sync; push it, or merge it"
    left = len(session.open_conflicts())
    if left:
        return (
            f"next: {left} file(s) need a decision: 'vime-sync conflicts', 'vime-sync show PATH', "
            "'vime-sync take ours|theirs|proposal PATH', then 'vime-sync continue'"
        )
    return "next: every conflict is resolved: 'vime-sync continue'"


def exit_for(session: Session) -> Exit:
    """1 while files need a person, else 0."""
    return Exit.ATTENTION if session.open_conflicts() and session.phase != "finished" else Exit.OK
