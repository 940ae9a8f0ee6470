"""What the evidence verbs share: options, the person at work, storing, and how a record is told in a line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from synctool.errors import UsageError

if TYPE_CHECKING:
    from synctool.evidence.record import Artifact, Fact
    from synctool.evidence.standing import Assessed, Ledger
    from synctool.git.repo import Repo
    from synctool.policy.model import Policy

KINDS = ("test", "lint", "patches", "audit", "image", "e2e", "ci")


def options(*chosen: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Several click options as one decorator."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(chosen):
            function = option(function)
        return function

    return decorate


dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would be recorded, and record nothing.")
sync_option = click.option(
    "--sync", help="The sync that it belongs to, by its branch.  [default: the branch that is checked out]"
)


def checked_name(_: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Checked before anything runs: a run of an hour must not end in an error about its name."""
    from pydantic import TypeAdapter, ValidationError

    from synctool.evidence.record import Name

    try:
        return value if value is None else TypeAdapter(Name).validate_python(value)
    except ValidationError:
        raise click.BadParameter("a name is 1 to 80 letters, digits, blanks or . _ : / + -", param=option) from None


name_option = click.option(
    "--name",
    required=True,
    callback=checked_name,
    help="What is checked, such as cpu-tests. Later ones replace earlier ones.",
)
kind_option = click.option(
    "--kind", type=click.Choice(KINDS), default="test", show_default=True, help="What it is about."
)
platform_option = click.option("--platform", default="", help="Such as linux/amd64, where it matters.")
stack_option = click.option(
    "--stack",
    "with_stack",
    is_flag=True,
    help="Record the digest of the patch stack in this tree (patches/PACKAGE/VERSION).",
)
artifact_option = click.option(
    "--artifact", "artifacts", multiple=True, metavar="NAME=SHA256", help="An image or file, by its digest. Repeatable."
)


def sync_of(repo: Repo, given: str | None) -> str:
    """The sync's key: the branch, without its prefix; empty when HEAD is detached and none was given."""
    return given or (repo.head_branch() or "").removeprefix("refs/heads/")


def person(repo: Repo) -> tuple[str, str]:
    """Name and mail of the person at work."""
    from synctool.mirror.store import who

    return who(repo)


def signed(who: tuple[str, str]) -> str:
    """``Name <mail>``."""
    return f"{who[0]} <{who[1]}>"


def parse_artifacts(texts: Iterable[str]) -> tuple[Artifact, ...]:
    """``NAME=sha256:...`` pairs.

    Raises:
        UsageError: one is not of that form.
    """
    import re

    from synctool.evidence.record import Artifact

    found = []
    for text in texts:
        name, _, digest = text.rpartition("=")
        digest = digest if digest.startswith("sha256:") else f"sha256:{digest}"
        if not name or not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
            raise UsageError(f"{text!r} is no artifact", hint="write NAME=sha256:DIGEST, with 64 hexadecimal digits")
        found.append(Artifact(name=name, digest=digest))
    return tuple(found)


def parse_pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """``KEY=VALUE`` pairs.

    Raises:
        UsageError: one is not of that form.
    """
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise UsageError(f"{option} {text!r} is no pair", hint=f"write {option} KEY=VALUE")
        found[key.strip()] = value.strip()
    return found


def stack_facts(repo: Repo, revision: str, wanted: bool) -> dict[str, Any]:
    """``stack`` and ``pin`` of the tree's patch stack, empty when not wanted.

    Raises:
        UsageError: the tree has none.
    """
    if not wanted:
        return {}
    from synctool.report.facts import stack_of

    stack = stack_of(repo, revision)
    if stack is None:
        raise UsageError("this tree holds no patch stack, or several", hint="leave --stack out")
    return {"stack": stack.digest, "pin": stack.pin.label}


def checked(make: Callable[[], Any]) -> Any:
    """A fact, with a mistake in what the user gave as a usage error."""
    from pydantic import ValidationError

    try:
        return make()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise UsageError(f"{place}: {first['msg']}" if place else first["msg"]) from None


def store(repo: Repo, facts: list[Fact], *, reason: str, dry_run: bool) -> tuple[list[Fact], list[str]]:
    """Keep facts and say what was new."""
    from synctool.evidence.store import add

    if dry_run:
        return facts, [f"dry run: would record {fact.id}" for fact in facts]
    fresh = add(repo, facts, person(repo), reason)
    known = len(facts) - len(fresh)
    return fresh, [f"{known} were recorded already"] if known else []


def ledger(repo: Repo, policy_file: Path | None, revision: str, sync: str | None) -> tuple[Ledger, Policy]:
    """The ledger of a revision."""
    from synctool.cli.inputs import load as load_inputs
    from synctool.evidence.standing import Target
    from synctool.evidence.store import load
    from synctool.report.facts import ledger_for

    policy = load_inputs(repo, policy_file).policy
    head = repo.resolve(revision)
    base = repo.run("merge-base", head, f"refs/heads/{policy.downstream.branch}", check=False).stdout.decode().strip()
    target = Target(head, repo.resolve(head, "tree"), base if base and base != head else None)
    seen = ledger_for(repo, target, policy, load(repo))
    return (seen.of_sync(sync) if sync else seen), policy


def row_json(row: Assessed) -> dict[str, Any]:
    """A record with its standing."""
    from synctool.report.evidence_sections import record_source

    return {**record_source(row), "counts": row.counts, "green": row.green}


def told(row: Assessed) -> str:
    """A record and its standing in a line."""
    record = row.record
    figures = ", ".join(f"{value:,} {key}" for key, value in record.figures.items() if value)
    run = f" {record.run}" if record.run else ""
    why = f", replaced by {row.replaced_by}" if row.replaced_by else ""
    paths = f" ({len(row.paths)} path(s) differ)" if row.paths else ""
    return f"{record.id}  {record.name}{run}: {record.outcome}{f' ({figures})' if figures else ''}; {row.standing}{paths}{why}"
