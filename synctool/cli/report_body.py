"""``vime-sync report``: the body of the sync's pull request."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from synctool.cli.app import Context, verb
from synctool.cli.evidence_common import options, sync_of, sync_option
from synctool.cli.report import Report

if TYPE_CHECKING:
    from synctool.git.repo import Repo
    from synctool.report.facts import Facts

facts_options = options(
    click.option("--policy", "policy_file", type=click.Path(path_type=Path, dir_okay=False), help="The policy file.  [default: the one in the head's tree]"),
    click.option("--manifest", "manifest_file", type=click.Path(path_type=Path, dir_okay=False), help="The manifest.  [default: the one in the head's tree]"),
    click.option("--since", help="Where the sync started.  [default: the manifest's downstream commit]"),
    click.option("--template", type=click.Path(path_type=Path, dir_okay=False), help="A Jinja template of your own (sandboxed)."),
    sync_option,
)  # fmt: skip


def facts_for(
    repo: Repo, head: str, policy_file: Path | None, manifest_file: Path | None, since: str | None, sync: str
) -> Facts:
    """The facts that the options name."""
    from synctool.policy.loading import load_policy
    from synctool.report.facts import gather

    return gather(
        repo,
        revision=head,
        policy=load_policy(policy_file) if policy_file else None,
        manifest_file=manifest_file,
        base=since,
        sync=sync or None,
    )


@click.command(name="report")
@click.argument("head", default="HEAD")
@facts_options
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write it here.  [default: print it]"
)
@click.option("--dry-run", is_flag=True, help="With -o: write nothing.")
@verb
def command(
    context: Context,
    head: str,
    policy_file: Path | None,
    manifest_file: Path | None,
    since: str | None,
    template: Path | None,
    sync: str | None,
    output: Path | None,
    dry_run: bool,
) -> Report:
    """Render the body of the sync's pull request, from records alone.

    The manifest, policy and patch headers in the head's tree, git itself, and the evidence ref are all that it may draw on. Each line names its
    source, and a figure or id that its source does not hold stops the rendering.
    """
    from synctool.report.body import render
    from synctool.report.sections import sections, sources
    from synctool.whole_file import write_whole

    repo = context.repo()
    facts = facts_for(repo, head, policy_file, manifest_file, since, sync_of(repo, sync))
    text = render(facts, template)
    found, known = sections(facts), sources(facts)
    data = {
        "head": facts.target.head,
        "tree": facts.target.tree,
        "body": text,
        "claims": [{"section": s.title, "text": c.text, "sources": list(c.sources)} for s in found for c in s.claims],
        "sources": known,
    }
    if output is None:
        return Report("report", data, [text.rstrip("\n")])
    if not dry_run:
        write_whole(output, text)
    word = "would be written" if dry_run else "written"
    return Report("report", data, [f"{len(data['claims'])} claims, {len(text):,} characters, {word}: {output}"])
