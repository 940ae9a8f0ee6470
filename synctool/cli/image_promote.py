"""``vime-sync image promote``."""

from __future__ import annotations

from pathlib import Path

import click

from synctool.cli.app import Context, verb
from synctool.cli.report import Report


@click.command(name="promote")
@click.argument("candidate", type=click.Path(path_type=Path))
@click.option("--repository", required=True, help="host[:port]/name, without a tag.")
@click.option("--tag", help="Only the candidate's own tag is allowed; all others are refused.  [default: that]")
@click.option("--dry-run", is_flag=True, help="Read the registry and decide; push nothing.")
@verb
def command(context: Context, candidate: Path, repository: str, tag: str | None, dry_run: bool) -> Report:
    """Push a candidate under its own tag, and read the digest back. 'latest' is read before and after and never written."""
    from synctool.errors import Refused
    from synctool.images.candidate import check, load
    from synctool.images.promote import promote
    from synctool.images.registry import Skopeo
    from synctool.images.tags import check_tag

    known, image = load(candidate)
    wanted = check_tag(tag or known.tag, image.platform, known.tree)
    wrong = check(candidate)
    if wrong:
        raise Refused(wrong[0], where=str(candidate), hint="'vime-sync image check' lists everything")
    done = promote(image, Skopeo(repository), tag=wanted, tree=known.tree, dry_run=dry_run)
    what = "pushed and read back" if done.pushed else "would be pushed" if dry_run else "there already"
    return Report(
        "image promote",
        {"repository": repository, "dry_run": dry_run, **done.to_json()},
        [f"{repository}:{done.tag} {done.digest}: {what}", f"latest: {done.latest or 'no such tag'}, untouched"],
    )
