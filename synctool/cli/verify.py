"""``vime-sync verify``: rebuild downstream from scratch, explain every difference, and write a patch that cures the unexplained ones."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from synctool.cli.app import Context, verb
from synctool.cli.inputs import Inputs, load, policy_option
from synctool.cli.report import Report
from synctool.errors import Exit, UsageError
from synctool.whole_file import write_whole

if TYPE_CHECKING:
    from synctool.git.repo import Repo
    from synctool.mirror.verify import Verification


@click.command(name="verify")
@policy_option
@click.option("--through", metavar="SHA", help="Upstream commit to compare with.  [default: what was fetched last]")
@click.option("--ours", metavar="REV", default="HEAD", show_default=True, help="Downstream commit to check.")
@click.option(
    "--since", metavar="REV", help="Downstream commit that is trusted: what differed there already is an overlay."
)
@click.option("--base", metavar="SHA", help="Upstream commit that --since stood at.  [default: from its records]")
@click.option("--fixup", type=click.Path(path_type=Path, dir_okay=False), help="Write the curing patch to this file.")
@click.option("--all", "show_all", is_flag=True, help="List explained differences too.")
@verb
def command(
    context: Context,
    policy_file: Path | None,
    through: str | None,
    ours: str,
    since: str | None,
    base: str | None,
    fixup: Path | None,
    show_all: bool,
) -> Report:
    """Translate upstream's tip, lay it beside downstream, and explain every difference.

    Exits with 1 when a difference has no explanation. Nothing in the repository is changed.
    """
    from synctool.cli.terminal import progress
    from synctool.mirror.verify import fixup_patch, verify

    if base is not None and since is None:
        raise UsageError("--base needs --since", hint="name the downstream commit that stood at that upstream commit")
    repo = context.repo(dry=True)
    inputs = load(repo, policy_file)
    tip = repo.resolve(through) if through else inputs.upstream_tip()
    head = repo.resolve(ours)
    trusted = repo.resolve(since) if since else None
    stood_at = repo.resolve(base) if base else None
    if trusted is not None and stood_at is None:
        stood_at = _stood_at(repo, inputs, trusted, tip)
    with progress("verifying", quiet=context.quiet) as told:
        found = verify(
            repo,
            inputs.policy,
            inputs.translator,
            ours=head,
            through=tip,
            since=trusted,
            base=stood_at,
            recorded=_recorded(repo, inputs, head, tip),
            progress=told,
        )
    patch = fixup_patch(found)
    if fixup is not None and patch:
        write_whole(fixup, patch)
    return _report(found, tip, head, patch, fixup if patch else None, show_all)


def _stood_at(repo: Repo, inputs: Inputs, downstream: str, tip: str) -> str:
    """The upstream commit that a downstream commit had reached, from its records."""
    from synctool.plan.history import read_history
    from synctool.plan.manifest import recorded_manifests
    from synctool.plan.resume import find_start

    history = read_history(repo, downstream, tip, upstream_name=inputs.policy.upstream.name)
    manifests = list(recorded_manifests(repo, repo.tree(downstream)))
    baseline = inputs.policy.upstream.baseline
    return find_start(repo, history, manifests, downstream=downstream, through=tip, baseline=baseline).base


def _recorded(repo: Repo, inputs: Inputs, head: str, tip: str) -> list[tuple[str, str]]:
    """Upstream changes that policy or a manifest leaves out, with the reason."""
    import datetime

    from synctool.git.commits import first_parent_range
    from synctool.plan.identity import identify
    from synctool.plan.manifest import recorded_manifests
    from synctool.plan.model import Kind

    found = []
    if inputs.policy.exclusions:
        today = datetime.date.today()
        for commit in first_parent_range(repo, None, tip):
            identity = identify(commit)
            rule = inputs.policy.exclusion_of(pr=identity.number if identity else None, commit=commit.oid, today=today)
            if rule is not None and commit.parents:
                found.append((commit.oid, f"{rule.describe()}: {rule.reason} ({inputs.policy.where(rule)})"))
    for manifest in recorded_manifests(repo, repo.tree(head)):
        for entry in manifest.entries:
            if entry.decision in (Kind.EXCLUDE, Kind.DEFER):
                found.append((entry.commit, f"{entry.decision}: {entry.reason} ({manifest.where(entry.line)})"))
        for port in manifest.ports:
            if port.commit:
                found.append(
                    (port.commit, f"recorded as ported in {port.downstream[:9]} ({manifest.where(port.line)})")
                )
    return found


def _report(found: Verification, tip: str, head: str, patch: bytes, fixup: Path | None, show_all: bool) -> Report:
    causes = Counter(str(difference.cause) for difference in found.differences)
    shown = found.differences if show_all else found.unexplained
    data: dict[str, Any] = {
        "through": tip,
        "ours": head,
        "compared": found.compared,
        "equal": found.equal,
        "self_test": found.self_test,
        "causes": dict(sorted(causes.items())),
        "unexplained": len(found.unexplained),
        "fixup_tree": found.fixup,
        "fixup_bytes": len(patch),
        "fixup_file": str(fixup) if fixup else None,
        "differences": [
            {
                "path": d.path,
                "upstream_path": d.upstream_path,
                "cause": str(d.cause),
                "explained": d.cause.explained,
                "detail": d.detail,
                "where": d.where,
                "open_places": d.blocks,
                "places": d.total,
            }
            for d in found.differences
        ],
    }
    summary = [
        f"{found.compared} files on both sides, {found.equal} equal; {found.self_test} planted paths judged as they must be",
        *(f"  {count:5} {cause}" for cause, count in causes.most_common()),
    ]
    summary += [f"{d.path}: {d.cause}: {d.detail}" + (f" ({d.where})" if d.where else "") for d in shown]
    if not found.unexplained:
        summary.append("every difference is explained")
        return Report("verify", data, summary)
    summary.append(f"{len(found.unexplained)} unexplained")
    hint = f"the patch {fixup} cures them" if fixup else "--fixup FILE writes a patch that cures them"
    messages = [f"{hint}; what is meant to differ needs an owner rule, an exclusion, or --since a state that had it"]
    return Report("verify", data, summary, messages=messages, exit_code=Exit.ATTENTION)
