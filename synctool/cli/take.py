"""``vime-sync take``: resolves conflicts by a side, a proposal, or what a person wrote."""

from __future__ import annotations

from pathlib import Path

import click

from synctool.cli.app import Context, verb
from synctool.cli.report import Report
from synctool.cli.running import Running, exit_for, names_for, next_step, running, save, session_json
from synctool.errors import Exit, UsageError
from synctool.mirror.session import Session


@click.command(name="take")
@click.argument("how", type=click.Choice(["ours", "theirs", "base", "proposal", "edited"]))
@click.argument("paths", nargs=-1)
@click.option(
    "--hunk", "hunks", multiple=True, type=click.IntRange(min=1), help="Only this hunk of the one file. Repeatable."
)
@click.option(
    "--kind", help="With 'proposal': take this kind, also one that is not offered by default ('show --all-proposals')."
)
@click.option(
    "--all", "everything", is_flag=True, help="Every file still open (with 'proposal': every hunk that has one)."
)
@click.option(
    "--file",
    "source",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="With 'edited': the resolved text of the one file.",
)
@click.option(
    "--from",
    "folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="With 'edited': a folder that 'conflicts --write' filled.",
)
@click.option("--delete", is_flag=True, help="With 'edited': the file goes away.")
@click.option("--dry-run", is_flag=True, help="Say what would be resolved, and keep nothing.")
@verb
def command(
    context: Context,
    how: str,
    paths: tuple[str, ...],
    hunks: tuple[int, ...],
    kind: str | None,
    everything: bool,
    source: Path | None,
    folder: Path | None,
    delete: bool,
    dry_run: bool,
) -> Report:
    """Resolve conflicts: HOW is ours, theirs, base, proposal or edited.

    'ours' and 'theirs' decide the hunks; what merged cleanly around them stays. Each call is one step that 'vime-sync undo' takes back.
    """
    from synctool.mirror import store

    _check(how, paths, hunks, kind, everything, source, folder, delete)
    repo = context.repo(dry=dry_run)
    with store.locked(repo):
        now = running(repo)
        names = names_for(repo, now.inputs)
        who = f"{names.committer.name} <{names.committer.email}>"
        session, done = _apply(now, how, paths, hunks, kind, everything, source, folder, delete, who)
        if not done:
            raise UsageError(
                "there is nothing to take", hint="'vime-sync conflicts' lists the open files and their proposals"
            )
        from synctool.mirror.steps import show_open

        session = show_open(repo, session, names)
        if not dry_run:
            save(repo, session, f"take {how}: {', '.join(done[:3])}{' ...' if len(done) > 3 else ''}", now.state)
    word = "would take" if dry_run else "took"
    summary = [f"{word} {session.resolutions[path].how}: {path}" for path in done]
    data = {"taken": done, "how": how, "session": session_json(session), "dry_run": dry_run}
    return Report(
        "take", data, summary, messages=[next_step(session)], exit_code=Exit.OK if dry_run else exit_for(session)
    )


def _check(
    how: str,
    paths: tuple[str, ...],
    hunks: tuple[int, ...],
    kind: str | None,
    everything: bool,
    source: Path | None,
    folder: Path | None,
    delete: bool,
) -> None:
    """Refuse options that do not fit together."""
    if how == "edited" and sum((source is not None, folder is not None, delete)) != 1:
        raise UsageError("'edited' needs one of --file, --from and --delete")
    if how != "edited" and (source or folder or delete):
        raise UsageError("--file, --from and --delete go with 'edited'")
    if (hunks or source) and len(paths) != 1:
        raise UsageError("--hunk and --file go with exactly one path")
    if kind is not None and how != "proposal":
        raise UsageError("--kind goes with 'proposal'")
    if everything == bool(paths) and folder is None:
        raise UsageError("name files, or say --all")


def _apply(
    now: Running,
    how: str,
    paths: tuple[str, ...],
    hunks: tuple[int, ...],
    kind: str | None,
    everything: bool,
    source: Path | None,
    folder: Path | None,
    delete: bool,
    who: str,
) -> tuple[Session, list[str]]:
    """The session after the step, and the files it touched."""
    from synctool.mirror.steps import has_markers, proposal_of, take

    repo, session = now.repo, now.session
    chosen = paths or tuple(conflict.path for conflict in session.open_conflicts())
    done: list[str] = []
    for path in chosen:
        conflict = session.conflict(path)
        wanted = hunks
        text: bytes | None = None
        if how == "proposal" and not hunks:
            wanted = tuple(note.number for note in conflict.hunks if proposal_of(note, kind) is not None)
            if not wanted and everything:
                continue
        if source is not None:
            text = source.read_bytes()
        elif folder is not None:
            edited = folder / conflict.path
            if not edited.is_file():
                if paths:
                    raise UsageError("there is no such file in the folder", where=str(edited))
                continue
            text = edited.read_bytes()
            if has_markers(text) and not paths:
                continue
        session = take(repo, session, conflict.path, how, who, hunks=wanted, kind=kind, text=None if delete else text)
        done.append(conflict.path)
    return session, done
