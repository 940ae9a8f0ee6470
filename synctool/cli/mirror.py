"""``vime-sync mirror``: the main job. Plans the range, merges it in translated space, and leaves a branch and, where needed, conflicts to decide."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from synctool.cli.app import Context, verb
from synctool.cli.inputs import Inputs, load, policy_option
from synctool.cli.plan import Wanted, make_plan, open_forge, range_options
from synctool.cli.report import Report
from synctool.cli.running import exit_for, names_for, next_step, save, session_json, short
from synctool.cli.terminal import progress
from synctool.errors import Exit, NothingToDo, RepositoryError
from synctool.git.refs import read_ref

if TYPE_CHECKING:
    from rich.console import Console

    from synctool.git.repo import Repo
    from synctool.mirror.session import Session
    from synctool.mirror.store import StateCommit
    from synctool.plan.model import Plan


def default_branch(upstream: str, plan: Plan) -> str:
    """``refs/heads/sync/<upstream>-<through>``."""
    suffix = "picks-" if plan.picks else ""
    return f"refs/heads/sync/{upstream}-{suffix}{plan.through[:9]}"


def manifest_text(plan: Plan, place: Path | None, upstream: str) -> str:
    """The manifest that belongs to a plan: the one that a person keeps, brought up to date, or a new one."""
    from synctool.plan.manifest_write import new_manifest, updated_manifest
    from synctool.textfile import read_text

    if place is not None and place.is_file():
        return updated_manifest(read_text(place, "manifest"), plan, str(place))
    return new_manifest(plan, upstream)


def policy_in_tree(repo: Repo, commit: str) -> bool:
    """Whether downstream itself keeps the policy: then the manifest and what is remembered of conflicts are committed beside it."""
    from synctool.policy.loading import POLICY_FILE

    return POLICY_FILE in repo.tree(commit)


def run_engine(
    context: Context,
    inputs: Inputs,
    plan: Plan,
    *,
    onto: str,
    branch: str,
    branch_before: str | None,
    options: dict[str, Any],
) -> Session:
    """Mirror the plan and return the session right after it; only objects are written."""
    from synctool.mirror.engine import mirror
    from synctool.mirror.memory import load_memory
    from synctool.mirror.steps import begin
    from synctool.plan.model import to_json

    repo = inputs.repo
    with progress("mirroring", quiet=context.quiet) as tell:
        result = mirror(
            repo,
            inputs.policy,
            inputs.translator,
            plan,
            onto,
            memory=load_memory(repo.objects, repo.tree(onto)),
            progress=tell,
        )
    return begin(
        repo,
        plan,
        to_json(plan),
        result,
        inputs.translator,
        names_for(repo, inputs),
        onto=onto,
        branch=branch,
        branch_before=branch_before,
        squash=options["squash"],
        record=options["record"],
        options=options,
    )


@click.command(name="mirror")
@policy_option
@range_options
@click.option(
    "--onto", default="HEAD", show_default=True, help="Start from this downstream commit or branch (a stacked sync)."
)
@click.option("--branch", help="The branch to write.  [default: sync/UPSTREAM-THROUGH]")
@click.option("--squash", is_flag=True, help="One commit for the whole range, then one that resolves its conflicts.")
@click.option(
    "--commit-records/--no-commit-records",
    default=None,
    help="Commit the manifest and the conflict memory too.  [default: if the downstream holds vime-sync.toml]",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Do everything but keep nothing; prints the resulting tree. Exit code 0, conflicts or not.",
)
@verb
def command(
    context: Context,
    policy_file: Path | None,
    wanted: Wanted,
    onto: str,
    branch: str | None,
    squash: bool,
    commit_records: bool | None,
    dry_run: bool,
) -> Report:
    """Merge upstream changes into downstream, in downstream's words, one commit each.

    Nothing is checked out: the result is a branch. Where upstream and downstream disagree the files keep diff3 markers on that branch and wait, all in one
    list, for 'vime-sync take' and 'vime-sync continue'. 'vime-sync undo' takes back any step, 'vime-sync abort' all of it.

    Exit code 1: the branch is written, and files of it are in conflict. With --dry-run the code is 0 all the same, since nothing waits for a person; the
    conflicts are listed.
    """
    from synctool.mirror import store
    from synctool.mirror.session import Session

    repo = context.repo(dry=dry_run)
    inputs = load(repo, policy_file)
    with store.locked(repo):
        state = store.load(repo)
        if state is not None and state.value["phase"] != "finished" and not dry_run:
            raise RepositoryError(
                f"a sync is running here ({Session.from_json(state.value).title})",
                hint="'vime-sync status' shows it; finish it with 'continue', or end it with 'abort'",
            )
        start = repo.resolve(onto)
        forge = open_forge(inputs, wanted)
        plan, place = make_plan(
            context,
            inputs,
            wanted,
            onto=start,
            forge=forge,
        )
        if not plan.taken():
            counts = ", ".join(f"{n} {kind}" for kind, n in plan.counts().items() if n)
            raise NothingToDo(
                f"nothing is left to mirror of {len(plan)} upstream changes ({counts})",
                hint=f"the base is from {plan.base_from}",
            )
        _refuse_repeat(repo, state, plan, start)
        target = f"refs/heads/{branch}" if branch else default_branch(inputs.policy.upstream.name, plan)
        before = read_ref(repo, target)
        if before is not None and not dry_run:
            raise RepositoryError(
                f"the branch {short(target)} exists",
                hint="name another with --branch, or delete it if it is of no use any more",
            )
        options = {
            "policy": str(policy_file.absolute()) if policy_file else None,
            "base": wanted.base,
            "through": plan.through,
            "numbers": list(wanted.numbers),
            "picks": list(wanted.picks),
            "manifest": str(wanted.manifest_file.absolute()) if wanted.manifest_file else None,
            "onto": onto,
            "squash": squash,
            "record": policy_in_tree(repo, start) if commit_records is None else commit_records,
            "manifest_text": manifest_text(plan, place, inputs.policy.upstream.name),
        }
        session = run_engine(context, inputs, plan, onto=start, branch=target, branch_before=None, options=options)
        if not session.conflicts:
            session = finished(repo, inputs, session)
        if not dry_run:
            previous = None
            if state is not None:
                store.clear(repo, restore_branch=False)
            save(repo, session, f"mirror {session.title}", previous)
    return report(repo, session, plan, dry_run)


def _refuse_repeat(repo: Repo, state: StateCommit | None, plan: Plan, start: str) -> None:
    """Say so when the very same sync stands finished on its branch.

    Raises:
        NothingToDo: it does.
    """
    if state is None or state.value["phase"] != "finished" or read_ref(repo, state.branch) is None:
        return
    done = state.value
    same = [(c["commit"], c["decision"]) for c in done["plan"]["changes"]] == [
        (item.change.oid, str(item.decision.kind)) for item in plan.items
    ]
    if done["onto"] == start and same:
        raise NothingToDo(
            f"{done['title']} is mirrored already, on {short(state.branch)}",
            hint="merge that branch, or delete it to mirror again",
        )


def finished(repo: Repo, inputs: Inputs, session: Session, parent: str | None = None) -> Session:
    """The session with its last commit: resolutions, and where asked the manifest and the conflict memory."""
    from synctool.mirror.recall import memory_files
    from synctool.mirror.steps import finish

    names = names_for(repo, inputs)
    files: dict[str, bytes] = {}
    if session.record:
        path, text = manifest_file_of(repo, session)
        files[path] = text
        files |= memory_files(repo, session, f"{names.committer.name} <{names.committer.email}>")
    return finish(repo, session, names, files=files, parent=parent)


def manifest_file_of(repo: Repo, session: Session) -> tuple[str, bytes]:
    """Path and text of the manifest that records the sync: the one kept by hand, where there is one, with the mirrored commits filled in."""
    from synctool.plan.manifest import FOLDER, manifest_name
    from synctool.plan.manifest_write import record_mirrored

    text = session.options["manifest_text"]
    name = manifest_name(session.plan["base"], session.plan["through"], picks=session.plan["picks"])
    return f"{FOLDER}/{name}", record_mirrored(text, session.landed, name).encode("utf-8", "surrogateescape")


def report(repo: Repo, session: Session, plan: Plan, dry_run: bool) -> Report:
    """What the run did."""
    from synctool.git.commits import read_commits

    tree = read_commits(repo.objects, [session.tip])[0].tree
    data = {**session_json(session), "tree": tree, "dry_run": dry_run}
    counts = plan.counts()
    clean = len(plan.taken()) - len({oid for c in session.conflicts for h in c.hunks for oid in h.changes})

    def render(console: Console) -> None:
        from rich.table import Table

        told = ", ".join(f"{n} {kind}" for kind, n in counts.items() if n)
        console.print(f"{session.title}: {len(plan)} upstream changes ({told})", markup=False)
        console.print(
            f"{'would write' if dry_run else 'wrote'} {len(set(session.landed.values()))} commits; {clean} changes without conflict",
            markup=False,
        )
        if session.conflicts:
            table = Table("file in conflict", "kind", "hunks", "from", "proposals")
            for row in data["conflicts"]:
                kinds = sorted({kind for found in row["proposals"].values() for kind in found})
                table.add_row(
                    row["path"], row["kind"], str(row["hunks"] or ""), " ".join(row["changes"][:4]), " ".join(kinds)
                )
            console.print(table)
        if session.work:
            console.print(
                f"{len(session.work)} upstream edits were not merged and are filed: 'vime-sync work'", markup=False
            )
        console.print(f"tree {tree}", markup=False)

    messages = [f"warning: {text}" for text in (*plan.warnings, *session.warnings)]
    messages.append("dry run: no branch, no session, no object was kept" if dry_run else next_step(session))
    return Report(
        "mirror", data, render=render, messages=messages, exit_code=exit_for(session) if not dry_run else Exit.OK
    )


def replanned(plan: Plan, reasons: dict[str, dict[str, str]]) -> Plan:
    """The plan with the skipped changes deferred."""
    from synctool.plan.model import Decision, Kind

    items = []
    for item in plan.items:
        why = reasons.get(item.change.oid)
        items.append(item.decided(Decision(Kind.DEFER, why["reason"], why["owner"], by="option")) if why else item)
    return replace(plan, items=tuple(items))
