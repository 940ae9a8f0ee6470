"""``vime-sync image``: the group of verbs about candidate images."""

from __future__ import annotations

import click

from synctool.cli.app import LazyGroup

VERBS: dict[str, tuple[str, str]] = {
    "base": ("synctool.cli.image_base", "Make a base image from Debian's packages."),
    "build": ("synctool.cli.image_build", "Build the candidate of a tree: patched engine inside, verified there."),
    "inspect": ("synctool.cli.image_inspect", "Show a candidate: digest, tree, pin, stack, layers, packages."),
    "check": ("synctool.cli.image_check", "Check a candidate: every blob, its bill of materials and its statement."),
    "promote": ("synctool.cli.image_promote", "Push a candidate under its own tag, and read the digest back."),
}


@click.group(name="image", cls=LazyGroup, verbs=VERBS)
def command() -> None:
    """Candidate images: one for each tree and architecture, named cand-<arch>-<tree>, as an OCI layout whose digest is the truth.

    A candidate is a folder with the layout, sbom.cdx.json, statement.json and candidate.json. No other tag than the candidate's is ever written;
    the digest of 'latest' is read before and after. ARM64 is built only on recorded green AMD64 evidence of the same tree, and only on a build host
    that policy names, over a route that policy allows.
    """
