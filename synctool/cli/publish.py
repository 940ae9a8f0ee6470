"""``vime-sync publish``: puts the body into the sync's pull request."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from synctool.cli.app import Context, verb
from synctool.cli.evidence_common import person, signed, store, sync_of
from synctool.cli.report import Report
from synctool.cli.report_body import facts_for, facts_options
from synctool.errors import Exit, UsageError

if TYPE_CHECKING:
    from synctool.forge.base import PublishingForge
    from synctool.git.repo import Repo
    from synctool.policy.model import Policy
    from synctool.report.facts import Facts


def open_publishing_forge(policy: Policy) -> PublishingForge:
    """GitHub, at the downstream project.

    Raises:
        UsageError: the policy does not say where that is.
    """
    from synctool.forge.github import GitHubForge
    from synctool.plan.build import slug_of

    slug = slug_of(policy.downstream.url)
    if slug is None:
        raise UsageError(
            "downstream.url names no GitHub project", hint="set it to https://github.com/OWNER/NAME in the policy"
        )
    return GitHubForge.from_environment(slug)


@click.command(name="publish")
@click.argument("head", default="HEAD")
@facts_options
@click.option("--branch", help="The branch at the forge, or OWNER:BRANCH of a fork.  [default: the sync's]")
@click.option("--base", help="The branch to merge into.  [default: the policy's downstream.branch]")
@click.option("--title", help="Title of a new pull request; an existing one keeps its own.")
@click.option("--pr", "number", type=click.IntRange(min=1), help="Our pull request, when it can't be found by itself.")
@click.option("--draft", is_flag=True, help="Open a new one as a draft.")
@click.option("--new", "another", is_flag=True, help="Open another one although someone closed ours.")
@click.option("--replaced-by", type=click.IntRange(min=1), help="Close ours, because that one contains its head.")
@click.option("--replace-edits", is_flag=True, help="Write over edits that someone made inside the generated part.")
@click.option("--remote", help="Share the records with this remote first.  [default: the one of downstream.url]")
@click.option(
    "--keep-records", is_flag=True, help="Leave the records in this clone; only the description is published."
)
@click.option("--dry-run", is_flag=True, help="Look at the forge and say what would be done; write nothing.")
@verb
def command(
    context: Context,
    head: str,
    policy_file: Path | None,
    manifest_file: Path | None,
    since: str | None,
    template: Path | None,
    sync: str | None,
    branch: str | None,
    base: str | None,
    title: str | None,
    number: int | None,
    draft: bool,
    another: bool,
    replaced_by: int | None,
    replace_edits: bool,
    remote: str | None,
    keep_records: bool,
    dry_run: bool,
) -> Report:
    """Open the sync's pull request, or bring its description up to date, and read back that it is so.

    People's text around the generated part stays; edits inside it stop the work until someone decides. The branch must be pushed already. The records
    that the description rests on go along (as 'evidence share' sends them, with git's own credentials), so that others can look at them. The token for
    the forge comes from GITHUB_TOKEN. Exit code 1: it is published, and another open pull request has the same head or a dependency is not met.
    """
    from synctool.report.body import render
    from synctool.report.publish import containing, decide, dependencies, do, look

    repo = context.repo(dry=dry_run)
    key = sync_of(repo, sync)
    where = branch or key
    if not where:
        raise UsageError("HEAD is detached, so the branch is not known", hint="give --branch")
    facts = facts_for(repo, head, policy_file, manifest_file, since, key)
    forge = open_publishing_forge(facts.policy)
    if replaced_by is not None:
        containing(forge, replaced_by, facts.target.head, repo.is_ancestor)
    situation = look(forge, where, facts.target.head, number)
    if replaced_by is not None:
        facts = _state_replaced(repo, facts, replaced_by, key, dry_run)
    action = decide(
        situation,
        text=render(facts, template),
        branch=where,
        head=facts.target.head,
        title=title or _title(facts),
        replaced_by=replaced_by,
        replace_edits=replace_edits,
        another=another,
    )
    depends = dependencies(forge, facts.ledger)
    messages = [*action.remarks, *_told(depends)]
    data: dict[str, Any] = {
        "do": str(action.do),
        "number": action.number,
        "title": action.title,
        "body": action.body,
        "same_head": [pull.number for pull in situation.twins],
        "depends_on": [{"number": n, "state": state} for n, state in depends],
        "verified": False,
    }
    attention = bool(action.remarks) or any(state not in ("merged", "open") for _, state in depends)
    code = Exit.ATTENTION if attention else Exit.OK
    name = (
        f"#{action.number}"
        if action.number
        else f"a pull request from {where} into {base or facts.policy.downstream.branch}"
    )
    if dry_run:
        lines = (
            [f"dry run: would {action.do} {name}"] if action.do != "unchanged" else [f"dry run: {name} is up to date"]
        )
    else:
        shared = None if keep_records else _share(repo, facts.policy, remote)
        messages += [shared] if shared else []
        found = do(forge, action, head=where, base=base or facts.policy.downstream.branch, draft=draft)
        data |= {"number": found.number, "url": found.url, "state": found.state, "verified": True}
        lines = [f"{action.do}: #{found.number} {found.url}, read back and equal"]
    if (budget := forge.budget()) is not None:
        messages.append(f"{forge.name}: {budget}")
    return Report("publish", data, lines, messages=messages, exit_code=code)


def _share(repo: Repo, policy: Policy, remote: str | None) -> str:
    """Send the records before the description that speaks of them; returns what to say about it."""
    from synctool.evidence.share import share
    from synctool.git.remote import remotes
    from synctool.plan.build import slug_of

    wanted = slug_of(policy.downstream.url)
    chosen = remote or next((name for name, url in sorted(remotes(repo).items()) if slug_of(url) == wanted), None)
    if chosen is None:
        return (
            f"the records stay in this clone: no remote of it is {wanted}; 'vime-sync evidence share REMOTE' sends them"
        )
    done = share(repo, chosen, person(repo))
    return f"records: {done.sent} sent to {chosen}, {done.received} received" if done.sent or done.received else ""


def _title(facts: Facts) -> str:
    name, manifest = facts.policy.upstream.name, facts.manifest
    if manifest is None:
        return f"Sync with {name}"
    if manifest.picks:
        return f"Sync {name}: {', '.join(f'#{e.pr}' if e.pr else e.commit[:9] for e in manifest.entries[:4])}"
    return f"Sync {name} {manifest.base[:9] if manifest.base else 'start'}..{manifest.through[:9]}"


def _state_replaced(repo: Repo, facts: Facts, number: int, sync: str, dry_run: bool) -> Facts:
    """Record that another pull request takes over, so that the body can say it."""
    from dataclasses import replace

    from synctool.evidence.record import Statement, Topic, now

    target = f"#{number}"
    if any(s.target == target for s in facts.ledger.said(Topic.REPLACED_BY_PR)):
        return facts
    who = signed(person(repo))
    statement = Statement(
        head=facts.target.head,
        tree=facts.target.tree,
        sync=sync,
        when=now(),
        by=who,
        topic=Topic.REPLACED_BY_PR,
        target=target,
        text=f"Its head contains {facts.target.head[:12]}.",
        signed_off_by=who,
    )
    store(repo, [statement], reason=f"replaced by {target}", dry_run=dry_run)
    return replace(facts, ledger=replace(facts.ledger, statements=(*facts.ledger.statements, statement)))


def _told(depends: list[tuple[int, str]]) -> list[str]:
    words = {
        "open": "depends on #{n}, which is open: do not merge before it",
        "merged": "#{n}, which this depended on, is merged",
        "closed": "depends on #{n}, which was closed without being merged",
        "missing": "depends on #{n}, which the forge does not know",
    }
    return [words[state].format(n=n) for n, state in depends]
