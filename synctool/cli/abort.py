"""``vime-sync abort``: ends a sync as if it had never begun."""

from __future__ import annotations

import click

from synctool.cli.app import Context, verb
from synctool.cli.report import Report
from synctool.cli.running import short
from synctool.errors import NothingToDo, RepositoryError
from synctool.git.refs import RefUpdate, is_broken, read_ref, remove_broken, update_refs


@click.command(name="abort")
@click.option("--force", is_flag=True, help="Also when the session can't be read, or has finished.")
@click.option("--dry-run", is_flag=True, help="Say what would be restored, and change nothing.")
@verb
def command(context: Context, force: bool, dry_run: bool) -> Report:
    """End the sync: its branch and its session go, everything else is as it was.

    The commits stay in the object store until git prunes them; the id of the branch is printed, so nothing is lost by a mistake.
    """
    from synctool.mirror import store

    repo = context.repo()
    with store.locked(repo):
        broken = [ref for ref in (store.SESSION_REF, store.REDO_REF) if is_broken(repo, ref)]
        oid = read_ref(repo, store.SESSION_REF)
        if oid is None and not broken:
            raise NothingToDo("no sync is running here")
        try:
            state = store.load(repo)
        except RepositoryError:
            if not force:
                raise
            state = None
        if state is None:
            if not dry_run:
                for ref in broken:
                    remove_broken(repo, ref)
                if oid is not None:
                    update_refs(repo, [RefUpdate(store.SESSION_REF, None, oid)], "abort --force")
            return Report(
                "abort",
                {"removed": [*broken, *([store.SESSION_REF] if oid else [])], "dry_run": dry_run},
                [f"{'would remove' if dry_run else 'removed'} a session that could not be read"],
            )
        if state.value["phase"] == "finished" and not force:
            raise RepositoryError(
                f"the sync has finished; {short(state.branch)} holds it",
                hint="'vime-sync undo' opens it again, 'abort --force' removes its branch",
            )
        was = read_ref(repo, state.branch)
        if not dry_run:
            store.clear(repo, restore_branch=True)
    back = state.value["branch_before"]
    summary = [
        f"{'would remove' if dry_run else 'removed'} {short(state.branch)}" + (f" (was {was[:12]})" if was else "")
    ]
    if back:
        summary = [f"{'would put' if dry_run else 'put'} {short(state.branch)} back to {back[:12]}"]
    return Report("abort", {"branch": state.branch, "was": was, "restored": back, "dry_run": dry_run}, summary)
