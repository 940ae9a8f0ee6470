"""``vime-sync continue``: finishes a sync whose conflicts are resolved."""

from __future__ import annotations

from dataclasses import replace

import click

from synctool.cli.app import Context, verb
from synctool.cli.mirror import finished
from synctool.cli.report import Report
from synctool.cli.running import Running, names_for, next_step, running, save, session_json, short
from synctool.errors import Exit
from synctool.git.commits import read_commits
from synctool.git.refs import read_ref
from synctool.git.repo import Repo
from synctool.mirror import store
from synctool.mirror.session import Session


@click.command(name="continue")
@click.option("--dry-run", is_flag=True, help="Say what is missing or what would be committed, and keep nothing.")
@verb
def command(context: Context, dry_run: bool) -> Report:
    """Finish the sync once its conflicts are resolved.

    Takes in what you committed on the sync's branch, writes the last commit (resolutions, and where the fork keeps them the manifest and what is to be
    remembered of the conflicts), and says what is still open otherwise.
    """
    from synctool.mirror.steps import adopt_edits

    repo = context.repo(dry=dry_run)
    with store.locked(repo):
        now = running(repo)
        names = names_for(repo, now.inputs)
        head = read_ref(repo, now.session.branch) or now.session.tip
        session = adopt_edits(repo, now.session, head, f"{names.committer.name} <{names.committer.email}>")
        left = session.open_conflicts()
        if left:
            lines = [f"{conflict.path}: {conflict.kind}" for conflict in left]
            data = {"finished": False, "session": session_json(session)}
            return Report(
                "continue",
                data,
                [f"{len(left)} files are still in conflict:", *lines],
                messages=[next_step(session)],
                exit_code=Exit.ATTENTION,
            )
        session = finished(repo, now.inputs, session, head)
        if not dry_run:
            _save(now, session, head)
    tree = read_commits(repo.objects, [session.tip])[0].tree
    word = "would finish" if dry_run else "finished"
    summary = [f"{word}: {session.title} on {short(session.branch)} at {session.tip[:12]}", f"tree {tree}"]
    broken = syntax_errors(repo, session)
    messages = [f"warning: {text}" for text in broken] + [next_step(session)]
    return Report(
        "continue",
        {"finished": not dry_run, "tree": tree, "broken": broken, "session": session_json(session)},
        summary,
        messages=messages,
    )


def _save(now: Running, session: Session, head: str) -> None:
    """Store the finished session. Commits of a person's on the branch become a step of their own: undo then takes back ours, not theirs."""
    state = now.state
    if head != now.session.tip:
        adopted = replace(session, tip=head, phase="conflicts")
        # The branch stands there already, so the transaction must not expect it where the last state left it.
        there = store.StateCommit(state.oid, state.previous, state.step, {**state.value, "tip": head})
        state = save(now.repo, adopted, "edits committed on the branch", there)
    save(now.repo, session, "continue", state)


def syntax_errors(repo: Repo, session: Session) -> list[str]:
    """Python files among the resolved ones that no longer compile; nothing is executed."""
    tree = repo.tree(session.tip)
    found = []
    for conflict in session.conflicts:
        entry = tree.get(conflict.path)
        if entry is None or not conflict.path.endswith(".py") or entry.mode == "160000":
            continue
        try:
            compile(repo.objects.read(entry.oid, "blob"), conflict.path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None)
            found.append(f"{conflict.path}:{line or 1}: does not compile: {getattr(error, 'msg', error)}")
    return found
