"""``vime-sync skip``: leaves an upstream change out of the running sync."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from synctool.cli.app import Context, verb
from synctool.cli.mirror import finished, replanned, run_engine
from synctool.cli.plan import Wanted, make_plan
from synctool.cli.report import Report
from synctool.cli.running import exit_for, names_for, next_step, running, save, session_json
from synctool.errors import Exit, UsageError
from synctool.mirror.session import Session


@click.command(name="skip")
@click.argument("changes", nargs=-1, required=True)
@click.option("--reason", required=True, help="Why it is left out; goes into the manifest.")
@click.option("--owner", help="Who answers for it.  [default: you]")
@click.option("--dry-run", is_flag=True, help="Say what would change, and keep nothing.")
@verb
def command(context: Context, changes: tuple[str, ...], reason: str, owner: str | None, dry_run: bool) -> Report:
    """Leave upstream changes (#12, or a commit) out of the running sync, with a reason.

    The range is merged again without them. Resolutions of conflicts that are still the same are kept.
    """
    from synctool.mirror import store
    from synctool.mirror.steps import carry_over, show_open

    if not reason.strip():
        raise UsageError("--reason must say something")
    repo = context.repo(dry=dry_run)
    with store.locked(repo):
        now = running(repo)
        inputs = now.inputs
        names = names_for(repo, inputs)
        options = now.session.options
        plan, _ = make_plan(
            context,
            inputs,
            Wanted(
                base=options["base"],
                through=options["through"],
                numbers=tuple(options["numbers"]),
                picks=tuple(options["picks"]),
                manifest_file=Path(options["manifest"]) if options["manifest"] else None,
            ),
            onto=now.session.onto,
        )
        skipped = dict(now.session.skipped)
        labels = []
        for name in changes:
            item = plan.find(name)
            if item is None:
                raise UsageError(f"{name} is not in this sync", hint="'vime-sync status --json' lists its changes")
            skipped[item.change.oid] = {"reason": reason, "owner": owner or names.committer.name}
            labels.append(item.change.label)
        plan = replanned(plan, skipped)
        if not plan.taken():
            raise UsageError("that would leave nothing to mirror", hint="'vime-sync abort' ends the sync")
        from synctool.plan.manifest_write import updated_manifest

        options = {**options, "manifest_text": updated_manifest(options["manifest_text"], plan)}
        session = run_engine(
            context,
            inputs,
            plan,
            onto=now.session.onto,
            branch=now.session.branch,
            branch_before=now.session.branch_before,
            options=options,
        )
        session = show_open(repo, replace(carry_over(now.session, session), skipped=skipped), names)
        if not session.conflicts:
            session = finished(repo, inputs, session)
        if not dry_run:
            save(repo, session, f"skip {', '.join(labels)}: {reason}", now.state)
    summary = [f"{'would skip' if dry_run else 'skipped'} {', '.join(labels)}: {reason}", _told(now.session, session)]
    data = {"skipped": labels, "reason": reason, "session": session_json(session), "dry_run": dry_run}
    return Report(
        "skip", data, summary, messages=[next_step(session)], exit_code=Exit.OK if dry_run else exit_for(session)
    )


def _told(before: Session, after: Session) -> str:
    return f"conflicts: {len(before.conflicts)} -> {len(after.conflicts)} files, {len(after.open_conflicts())} open"
