"""``vime-sync evidence``: the group of verbs about what was seen, imported when called like the others."""

from __future__ import annotations

import click

from synctool.cli.app import LazyGroup

VERBS: dict[str, tuple[str, str]] = {
    "run": ("synctool.cli.evidence_run", "Run a command here and record what it showed about this tree."),
    "import": ("synctool.cli.evidence_import", "Record what CI wrote: builds, JUnit files, other clones' records."),
    "attest": ("synctool.cli.evidence_attest", "Record something seen elsewhere, or refused, signed off by you."),
    "state": ("synctool.cli.evidence_state", "Say what records can't: dependencies, reviews, withdrawals."),
    "share": ("synctool.cli.evidence_share", "Exchange records with a remote: theirs come here, ours go there."),
    "list": ("synctool.cli.evidence_list", "List the records and whether they hold for a head."),
    "check": ("synctool.cli.evidence_check", "Fail unless all required evidence holds and is green."),
}


@click.group(name="evidence", cls=LazyGroup, verbs=VERBS)
def command() -> None:
    """Evidence: records bound to a head and its tree.

    A record holds for a later head while the tree is equal, or while only paths differ that the policy calls neutral ([[neutral]]). All else is stale.
    Records are kept in refs/vime-sync/evidence, which neither head nor tree knows about: 'evidence share' and 'publish' exchange it with a remote.
    """
