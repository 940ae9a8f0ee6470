"""``vime-sync fetch``: upstream's history into this repository, under a ref of our own."""

from __future__ import annotations

from pathlib import Path

import click

from synctool.cli.app import Context, verb
from synctool.cli.inputs import load, policy_option, upstream_ref
from synctool.cli.report import Report
from synctool.cli.terminal import progress
from synctool.errors import ConfigError, Exit
from synctool.git.remote import fetch_branch


@click.command(name="fetch")
@policy_option
@click.option(
    "--from", "address", help="Fetch from here instead of the policy's upstream.url (an address or a folder)."
)
@click.option("--branch", help="Fetch this branch instead of the policy's.")
@click.option("--dry-run", is_flag=True, help="Say what would be fetched, and fetch nothing.")
@verb
def command(
    context: Context, policy_file: Path | None, address: str | None, branch: str | None, dry_run: bool
) -> Report:
    """Bring upstream's history into this repository.

    The branch lands in refs/vime-sync/upstream/BRANCH: no remote is added, no tag comes along and nothing is checked out.
    """
    repo = context.repo()
    url, wanted = address, branch
    if url is None or wanted is None:
        try:
            policy = load(repo, policy_file).policy
        except ConfigError:
            # Before there is a policy, for 'init' to learn one from: an address is all it takes.
            if url is None or policy_file is not None:
                raise
        else:
            url, wanted = url or policy.upstream.url, wanted or policy.upstream.branch
    wanted = wanted or "main"
    if not url:
        raise ConfigError("the policy names no upstream address", hint="set upstream.url, or pass --from")
    ref = upstream_ref(wanted)
    data = {"url": url, "branch": wanted, "ref": ref}
    if dry_run:
        return Report("fetch", {**data, "dry_run": True}, summary=[f"would fetch {wanted} of {url} into {ref}"])
    with progress(f"fetching {wanted}", quiet=context.quiet) as tell:
        before, after = fetch_branch(repo, url, wanted, ref, progress=tell)
    new = int(repo.text("rev-list", "--count", "--first-parent", after, *([f"^{before}"] if before else [])))
    rewritten = bool(before) and not repo.is_ancestor(str(before), after)
    summary = [f"{ref}: {before[:12] if before else 'new'} -> {after[:12]}, {new} new first-parent changes"]
    messages = []
    if rewritten:
        messages.append(
            "warning: upstream rewrote its history: the tip fetched before is not an ancestor of the new one"
        )
    code = Exit.NO_OP if before == after else Exit.OK
    return Report(
        "fetch",
        {**data, "before": before, "after": after, "new": new, "rewritten": rewritten},
        summary,
        messages=messages,
        exit_code=code,
    )
