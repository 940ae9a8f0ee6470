"""``vime-sync image build``."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from synctool.cli.app import Context, verb
from synctool.cli.report import Report
from synctool.errors import Exit, RepositoryError, UsageError

if TYPE_CHECKING:
    from synctool.git.repo import Repo
    from synctool.images.permission import Refusal


@click.command(name="build")
@click.option("--base", type=click.Path(path_type=Path, exists=True), required=True, help="Layout of the base image.")
@click.option("--wheels", type=click.Path(path_type=Path, exists=True), required=True, help="Folder of the wheels.")
@click.option(
    "--archive", type=click.Path(path_type=Path, exists=True), required=True, help="The pin's source archive."
)
@click.option("--output", type=click.Path(path_type=Path), required=True, help="Folder of the candidate, absent yet.")
@click.option("--rev", default="HEAD", show_default=True, help="The commit whose tree goes in; the work tree does not.")
@click.option("--template", default="docker/Dockerfile.j2", show_default=True, help="Template, read from that tree.")
@click.option("--stack", default=None, help="The stack's folder in the tree.  [default: the only one under patches/]")
@click.option("--platform", default="linux/amd64", show_default=True)
@click.option("--builder", type=click.Choice(["buildah", "docker", "overlay"]), help="[default: what works here]")
@click.option("--host", "host", help="A build host, as ssh would reach it; its route is checked against --allow.")
@click.option("--allow", multiple=True, help="Host name that the build host may have. Repeat it.")
@click.option("--allow-jump", multiple=True, help="Jump host that the route may use. Repeat it.  [default: none]")
@click.option("--dry-run", is_flag=True, help="Decide and render only: print tag and Dockerfile, build nothing.")
@verb
def command(
    context: Context,
    base: Path,
    wheels: Path,
    archive: Path,
    output: Path,
    rev: str,
    template: str,
    stack: str | None,
    platform: str,
    builder: str | None,
    host: str | None,
    allow: tuple[str, ...],
    allow_jump: tuple[str, ...],
    dry_run: bool,
) -> Report:
    """Build the candidate of a tree. Inside, the patched engine is installed and proven to hold exactly the stack.

    The same tree, base, wheels and pin give the same digest. ARM64 needs green AMD64 evidence of the same tree; a refusal is exit code 1, with the rule in
    the JSON, and can be recorded with 'vime-sync evidence'.
    """
    from synctool.cli.terminal import progress
    from synctool.images import candidate as candidates
    from synctool.images.builders import choose
    from synctool.images.context import assemble
    from synctool.images.oci import read_image
    from synctool.images.recipe import Recipe, render
    from synctool.images.sbom import bill
    from synctool.images.statement import statement
    from synctool.images.tags import candidate_tag
    from synctool.patches.stack import find_stack, load_stack

    repo = context.repo()
    commit = repo.resolve(rev)
    tree_id = repo.resolve(commit, "tree")
    tag = candidate_tag(platform, tree_id)
    refusal = _refusal(repo, platform, tree_id, host, allow, allow_jump)
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
        entry = tree.get(template)
        if entry is None:
            raise RepositoryError("the tree has no such template", where=template)
        recipe = Recipe(tree_id, pin, loaded.digest, inside, archive.name)
        text = render(tree.store.read(entry.oid).decode(), recipe, where=template)
        if dry_run:
            return Report(
                "image build", {"tag": tag, "dockerfile": text, "dry_run": True}, [f"would build {tag}", text]
            )
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
    if candidates.installed_stack(image) != loaded.digest:
        raise RepositoryError(
            "the image does not hold the stack of this folder", where=str(output), hint="commit the stack first"
        )
    version = tool.version()
    known = candidates.Candidate(tag, image.digest, platform, commit, tree_id, pin, loaded.digest, made.digest, version)
    told = statement(
        tag=tag, digest=image.digest, tree=tree_id, commit=commit, pin=pin, stack=loaded.digest, platform=platform, inputs=made.digest,
        builder=version, materials=made.materials,
    )  # fmt: skip
    candidates.save(output, known, bill(image, name=tag), told)
    return Report(
        "image build", known.to_json(), [f"{tag} {image.digest}", f"{output}: layout, bill of materials, statement"]
    )


def _refusal(
    repo: Repo, platform: str, tree: str, host: str | None, allow: tuple[str, ...], jumps: tuple[str, ...]
) -> Refusal | None:
    from synctool.evidence.record import Outcome
    from synctool.evidence.store import load
    from synctool.images.hosts import refuse_route, resolve
    from synctool.images.permission import refuse_order

    # The route first: it is refused whatever was seen, and asking ssh costs nothing.
    if host is not None:
        refusal = refuse_route(resolve(host), names=allow, jumps=jumps, where="--allow and --allow-jump")
        if refusal is not None:
            return refusal
        raise UsageError(
            "builds on another host are not started from here",
            hint=f"the route to {host} is allowed; run this verb there",
        )
    green = tuple(one for one in load(repo).records if one.outcome is Outcome.PASSED)
    return refuse_order(platform, tree, green)
