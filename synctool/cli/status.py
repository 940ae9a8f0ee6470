"""``vime-sync status``: where the sync stands and what to do next."""

from __future__ import annotations

from typing import Any

import click

from synctool.cli.app import Context, verb
from synctool.cli.report import Report
from synctool.cli.running import exit_for, next_step, session_json, short
from synctool.git.refs import list_refs, read_ref


@click.command(name="status")
@verb
def command(context: Context) -> Report:
    """Say what state the sync is in and what to do next. Exits with 1 while conflicts wait."""
    from synctool.mirror import store
    from synctool.mirror.session import Session

    repo = context.repo()
    fetched = {
        ref.removeprefix("refs/vime-sync/upstream/"): oid
        for ref, oid in list_refs(repo, "refs/vime-sync/upstream/").items()
    }
    data: dict[str, Any] = {
        "fetched": fetched,
        "session": None,
        "can_undo": False,
        "can_redo": read_ref(repo, store.REDO_REF) is not None,
    }
    summary = [f"fetched: upstream {branch} at {oid[:12]}" for branch, oid in fetched.items()]
    state = store.load(repo)
    if state is None:
        summary.append("no sync is running")
        hint = "next: 'vime-sync plan' shows what is new" if fetched else "next: 'vime-sync fetch'"
        return Report("status", data, summary, messages=[hint])
    session = Session.from_json(state.value)
    data |= {"session": session_json(session), "can_undo": True, "last_step": state.step}
    left = len(session.open_conflicts())
    summary += [
        f"sync of {session.title}: {session.phase}",
        f"branch {short(session.branch)} at {session.tip[:12]}, {len(set(session.landed.values()))} mirrored commits",
        f"conflicts: {len(session.conflicts)} files, {left} open",
        f"last step: {state.step}",
    ]
    head = read_ref(repo, session.branch)
    messages = [*(f"warning: {text}" for text in session.warnings), next_step(session)]
    if head != session.tip and session.phase != "finished":
        moved = (
            "was deleted"
            if head is None
            else f"has commits of yours (at {head[:12]}): 'vime-sync continue' takes them in"
        )
        messages.insert(0, f"{short(session.branch)} {moved}")
    return Report("status", data, summary, messages=messages, exit_code=exit_for(session))
