"""``vime-sync evidence attest``."""

from __future__ import annotations

import click

from synctool.cli.app import Context, verb
from synctool.cli.evidence_common import (
    artifact_option,
    checked,
    dry_run_option,
    kind_option,
    name_option,
    options,
    parse_artifacts,
    parse_pairs,
    person,
    platform_option,
    signed,
    stack_facts,
    stack_option,
    store,
    sync_of,
    sync_option,
)  # fmt: skip
from synctool.cli.report import Report
from synctool.errors import UsageError

OUTCOMES = ("passed", "failed", "cancelled", "lost", "refused", "pending")


@click.command(name="attest")
@options(
    name_option,
    kind_option,
    click.option("--outcome", type=click.Choice(OUTCOMES), required=True, help="How it ended, or that it has not, or was refused."),
    click.option("--head", default="HEAD", show_default=True, help="The commit that it was seen on."),
    click.option("--figure", "figures", multiple=True, metavar="KEY=N", help="A count, such as 'runs=2'. Repeatable."),
    click.option("--detail", "details", multiple=True, metavar="KEY=TEXT", help="A further fact. Repeatable."),
    click.option("--run", "run_name", default="", help="Name of the CI run, such as '#1383'."),
    click.option("--url", default="", help="Where it can be looked at."),
    artifact_option,
    platform_option,
    stack_option,
    click.option("--note", default="", help="A remark; for 'refused' the reason."),
    sync_option,
    click.option("--signoff", "-s", is_flag=True, help="Yes, I saw this myself, and sign for it (needed)."),
    dry_run_option,
)  # fmt: skip
@verb
def command(
    context: Context,
    name: str,
    kind: str,
    outcome: str,
    head: str,
    figures: tuple[str, ...],
    details: tuple[str, ...],
    run_name: str,
    url: str,
    artifacts: tuple[str, ...],
    platform: str,
    with_stack: bool,
    note: str,
    sync: str | None,
    signoff: bool,
    dry_run: bool,
) -> Report:
    """Record something that was seen elsewhere: on a GPU machine, in a CI that can't be read, by eye.

    It is marked as such wherever it is told, with your name. vime-sync did not run it and can't vouch for it.
    """
    from synctool.evidence.record import Outcome, Record, Source, now
    from synctool.policy.model import EvidenceKind
    from synctool.redact import redact

    if not signoff:
        raise UsageError("an attestation needs --signoff", hint="sign only for what you saw yourself")
    repo = context.repo()
    commit = repo.resolve(head)
    counts = {}
    for key, value in parse_pairs(figures, "--figure").items():
        if not value.replace(",", "").isdigit():
            raise UsageError(f"--figure {key}={value}: a figure is a whole number", hint="use --detail for words")
        counts[key] = int(value.replace(",", ""))
    who = signed(person(repo))
    record = checked(
        lambda: Record(
            head=commit,
            tree=repo.resolve(commit, "tree"),
            sync=sync_of(repo, sync),
            when=now(),
            by=who,
            name=name,
            kind=EvidenceKind(kind),
            outcome=Outcome(outcome),
            source=Source.ATTESTED,
            figures=counts,
            details={key: redact(value) for key, value in parse_pairs(details, "--detail").items()},
            artifacts=parse_artifacts(artifacts),
            run=run_name,
            url=redact(url),
            platform=platform,
            note=redact(note),
            signed_off_by=who,
            **stack_facts(repo, commit, with_stack),
        )
    )
    fresh, messages = store(repo, [record], reason=f"{name}: {outcome}, attested", dry_run=dry_run)
    line = f"{record.name}: {record.outcome}, seen on {commit[:12]}, signed off by {who}"
    return Report("evidence attest", {"record": record.to_json(), "new": bool(fresh)}, [line], messages=messages)
