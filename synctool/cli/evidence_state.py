"""``vime-sync evidence state``."""

from __future__ import annotations

import click

from synctool.cli.app import Context, verb
from synctool.cli.evidence_common import checked, dry_run_option, options, person, signed, store, sync_of, sync_option
from synctool.cli.report import Report

TOPICS = ("depends-on", "review-against", "replaces-pr", "withdraws", "not-mirrored", "review", "note")


@click.command(name="state")
@click.argument("topic", type=click.Choice(TOPICS))
@options(
    click.option("--target", default="", help="What it is about: '#456', an address, a record's id, a path. Not for review and note."),
    click.option("--text", required=True, help="What you say, in a sentence."),
    sync_option,
    dry_run_option,
)  # fmt: skip
@verb
def command(context: Context, topic: str, target: str, text: str, sync: str | None, dry_run: bool) -> Report:
    """Say something about the sync that no record can say; it is signed off with your name.

    depends-on and replaces-pr take a pull request; review-against one, or an address; withdraws a record that must not count any more;
    not-mirrored an upstream file or part that was left out.
    """
    from synctool.evidence.record import Statement, Topic, now
    from synctool.evidence.store import load
    from synctool.redact import redact

    repo = context.repo()
    if topic == "withdraws" and target:
        target = load(repo).find(target).id
    head = repo.resolve("HEAD")
    who = signed(person(repo))
    statement = checked(
        lambda: Statement(
            head=head,
            tree=repo.resolve(head, "tree"),
            sync=sync_of(repo, sync),
            when=now(),
            by=who,
            topic=Topic(topic),
            target=redact(target),
            text=redact(text),
            signed_off_by=who,
        )
    )
    fresh, messages = store(repo, [statement], reason=f"{topic} {target}".strip(), dry_run=dry_run)
    line = f"{topic}{f' {target}' if target else ''}: {statement.text}"
    return Report("evidence state", {"statement": statement.to_json(), "new": bool(fresh)}, [line], messages=messages)
