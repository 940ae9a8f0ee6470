"""``vime-sync image build``."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from synctool.cli.app import Context, verb
from synctool.cli.inputs import policy_option
from synctool.cli.report import Report
from synctool.errors import EnvironmentFailure, Exit, RepositoryError, UsageError

if TYPE_CHECKING:
    from synctool.git.repo import Repo
    from synctool.images.permission import Refusal


@click.command(name="build")
@policy_option
@click.option("--base", type=click.Path(path_type=Path, exists=True), required=True, help="Layout of the base image.")
@click.option("--wheels", type=click.Path(path_type=Path, exists=True), required=True, help="Folder of the wheels.")
@click.option(
    "--archive",
    type=click.Path(path_type=Path, exists=True),
    help="The pin's source archive.  [default: from the package index, kept in the cache]",
)
@click.option("--output", type=click.Path(path_type=Path), required=True, help="Folder of the candidate, absent yet.")
@click.option("--rev", default="HEAD", show_default=True, help="The commit whose tree goes in; the work tree does not.")
@click.option("--template", default="docker/Dockerfile.j2", show_default=True, help="Template, read from that tree.")
@click.option("--stack", default=None, help="The stack's folder in the tree.  [default: the only one under patches/]")
@click.option("--platform", default="linux/amd64", show_default=True)
@click.option("--builder", type=click.Choice(["buildah", "docker", "overlay"]), help="[default: what works here]")
@click.option("--host", help="A build host of the policy; its route is looked at, and nothing is built here.")
@click.option("--dry-run", is_flag=True, help="Decide and render only: print tag and Dockerfile, build nothing.")
@verb
def command(
    context: Context,
    policy_file: Path | None,
    base: Path,
    wheels: Path,
    archive: Path | None,
    output: Path,
    rev: str,
    template: str,
    stack: str | None,
    platform: str,
    builder: str | None,
    host: str | None,
    dry_run: bool,
) -> Report:
    """Build the candidate of a tree. Inside, the patched engine is installed and proven to hold exactly the stack.

    The same tree, base, wheels and pin give the same digest. ARM64 needs green AMD64 evidence of the same tree. A platform that is not this machine's is
    built on a [[build_host]] of the policy, over a route that policy allows; that route is asked of ssh, and nothing is started there. A refusal is exit
    code 1, with the rule in the JSON; under 'vime-sync evidence run' it becomes a record of it.
    """
    from synctool.cli.terminal import progress
    from synctool.images import candidate as candidates
    from synctool.images.builders import choose
    from synctool.images.contents import read_contents
    from synctool.images.context import assemble
    from synctool.images.oci import read_image
    from synctool.images.recipe import Recipe, render
    from synctool.images.sbom import bill
    from synctool.images.statement import statement
    from synctool.images.tags import candidate_tag
    from synctool.patches.sdist import kept_archive
    from synctool.patches.stack import find_stack, load_stack

    repo = context.repo()
    commit = repo.resolve(rev)
    tree_id = repo.resolve(commit, "tree")
    tag = candidate_tag(platform, tree_id)
    refusal = _refusal(repo, policy_file, commit, platform, host, runs=builder != "overlay")
    if refusal is not None:
        data = {"tag": tag, "tree": tree_id, "platform": platform, "refusal": refusal.to_json()}
        return Report(
            "image build",
            data,
            [f"refused ({refusal.rule}): {refusal.reason}"],
            messages=[refusal.hint],
            exit_code=Exit.ATTENTION,
        )
    if output.exists() and any(output.iterdir()):
        raise UsageError("the output folder is not empty", where=str(output))
    tree = repo.tree(commit)
    with tempfile.TemporaryDirectory(prefix="vime-image-", dir=output.parent) as scratch:
        folder = find_stack(context.directory, Path(stack) if stack else None)
        inside = folder.resolve().relative_to(context.directory.resolve()).as_posix()
        loaded = load_stack(folder)
        pin = f"{loaded.pin.package}=={loaded.pin.version}"
        name = archive.name if archive else loaded.pin.archive.name
        entry = tree.get(template)
        if entry is None:
            raise RepositoryError("the tree has no such template", where=template)
        recipe = Recipe(tree_id, pin, loaded.digest, inside, name)
        text = render(tree.store.read(entry.oid).decode(), recipe, where=template)
        if dry_run:
            planned = {"tag": tag, "dockerfile": text, "dry_run": True}
            return Report("image build", planned, messages=[f"would build {tag}"], body=text)
        if archive is None:
            with progress(f"getting {loaded.pin.label}", quiet=context.quiet) as update:
                archive = kept_archive(loaded.pin, progress=update)
        made = assemble(
            Path(scratch),
            tree=tree,
            tree_id=tree_id,
            dockerfile=text,
            base_digest=read_image(base).digest,
            wheels=wheels,
            archive=archive,
            archive_sha256=loaded.pin.archive.sha256,
        )
        tool = choose(builder)
        labels = {"io.vime.tree": tree_id, "io.vime.pin": pin, "io.vime.stack": loaded.digest}
        output.mkdir(parents=True, exist_ok=True)
        with progress(f"building {tag} with {tool.name}", quiet=context.quiet):
            image = tool.build(made, base.resolve(), (output / candidates.LAYOUT).resolve(), labels)
    with progress("reading the layers", quiet=context.quiet):
        contents = read_contents(image)
    if contents.wrong:
        raise EnvironmentFailure(f"{tool.name} wrote a broken image: {contents.wrong[0]}", where=str(output))
    if contents.stack != loaded.digest:
        raise RepositoryError(
            "the image does not hold the stack of this folder", where=str(output), hint="commit the stack first"
        )
    version = tool.version()
    known = candidates.Candidate(tag, image.digest, platform, commit, tree_id, pin, loaded.digest, made.digest, version)
    told = statement(
        tag=tag, digest=image.digest, tree=tree_id, commit=commit, pin=pin, stack=loaded.digest, platform=platform, inputs=made.digest,
        builder=version, materials=made.materials,
    )  # fmt: skip
    candidates.save(output, known, bill(image, contents, name=tag), told)
    return Report(
        "image build", known.to_json(), [f"{tag} {image.digest}", f"{output}: layout, bill of materials, statement"]
    )


def _refusal(
    repo: Repo, policy_file: Path | None, commit: str, platform: str, host: str | None, *, runs: bool
) -> Refusal | None:
    """Why it is not built. ``runs``: the builder runs the platform's programs, so it needs a machine of that platform."""
    from synctool.images.hosts import local_platform, refuse_host
    from synctool.images.permission import FIRST, refuse_order

    if platform == FIRST and host is None:
        return None  # needs no policy: a first candidate is built anywhere
    from synctool.cli.evidence_common import ledger

    seen, policy = ledger(repo, policy_file, commit, None)
    elsewhere = host is not None or (runs and platform != local_platform())
    if elsewhere:
        # The route first: it is refused whatever was seen, and asking ssh costs nothing.
        place, refusal = refuse_host(policy, platform, host)
        if refusal is not None:
            return refusal
    refusal = refuse_order(platform, seen)
    if refusal is None and elsewhere:
        raise UsageError(
            "builds on another host are not started from here",
            hint=f"the route to {place} is allowed; run this verb there",
        )
    return refusal
