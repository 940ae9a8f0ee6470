"""The sign-off of the Developer Certificate of Origin."""

from __future__ import annotations

from collections.abc import Iterator

from synctool.audit.context import Audit
from synctool.audit.finding import Hit, Rule

RULE = Rule("dco", "a commit without its author's sign-off", "the DCO check of the forge refuses the pull request")
RULES = (RULE,)


def check(audit: Audit) -> Iterator[Hit]:
    """The commits of the sync. A mirrored commit keeps upstream's author and is signed off by whoever mirrored it."""
    for commit in audit.commits:
        signed = [value for key, value in _lines(commit.message) if key.lower() == "signed-off-by"]
        addresses = {value.rpartition("<")[2].rstrip("> ").lower() for value in signed}
        if not {commit.author.email.lower(), commit.committer.email.lower()} & addresses:
            who = f"{commit.author.name} <{commit.author.email}>"
            told = "is not signed off" if not signed else f"is signed off by {', '.join(signed)}, not by {who}"
            yield Hit(
                RULE,
                commit.oid,
                "",
                0,
                f"commit {commit.oid[:9]} ({commit.subject[:60]}) {told}",
                "git commit --amend -s (the tree stays, so evidence holds)",
            )


def _lines(message: str) -> Iterator[tuple[str, str]]:
    """Trailers anywhere in the message: a squash keeps those of its parts in the middle."""
    for line in message.splitlines():
        key, colon, value = line.partition(":")
        if colon and " " not in key:
            yield key.strip(), value.strip()
