"""``vime-sync evidence share``."""

from __future__ import annotations

import click

from synctool.cli.app import Context, verb
from synctool.cli.evidence_common import person
from synctool.cli.report import Report
from synctool.errors import Exit


@click.command(name="share")
@click.argument("remote", default="origin")
@verb
def command(context: Context, remote: str) -> Report:
    """Bring the records here and at a remote (its name, or an address) to the same set: theirs come here, ours go there.

    Only refs/vime-sync/evidence moves, never by force. 'vime-sync publish' does this by itself for the remote of downstream.url. Exit code 4: both had
    the same already.
    """
    from synctool.evidence.share import share

    repo = context.repo()
    done = share(repo, remote, person(repo))
    data = {"remote": remote, "received": done.received, "sent": done.sent, "tip": done.tip}
    same = not done.received and not done.sent
    line = "nothing to do: both have the same records" if same else f"{done.received} received, {done.sent} sent"
    return Report("evidence share", data, [line], exit_code=Exit.NO_OP if same else Exit.OK)
