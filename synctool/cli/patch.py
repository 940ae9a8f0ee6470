"""``vime-sync patch``: the group of verbs about the patch stack, imported when called like the others."""

from __future__ import annotations

import click

from synctool.cli.app import LazyGroup

VERBS: dict[str, tuple[str, str]] = {
    "list": ("synctool.cli.patch_list", "List the stack: each patch, its upstream state and what it touches."),
    "verify": (
        "synctool.cli.patch_verify",
        "Prove that the stack applies to the exact pin and that the result parses.",
    ),
    "lint": ("synctool.cli.patch_lint", "Check headers, series and form of the patches."),
    "apply": ("synctool.cli.patch_apply", "Apply the stack: to an environment's site-packages, or into a folder."),
    "revert": ("synctool.cli.patch_revert", "Take the stack out of an environment's site-packages."),
    "status": ("synctool.cli.patch_status", "Say whether an environment is stock, patched or interrupted."),
    "new": ("synctool.cli.patch_new", "Start a patch: a header to fill in and a folder to edit in."),
    "edit": ("synctool.cli.patch_edit", "Lay out the source as one patch leaves it, to be edited."),
    "refresh": (
        "synctool.cli.patch_refresh",
        "Rewrite a patch from its edited folder, or the stack in canonical form.",
    ),
    "rebase": ("synctool.cli.patch_rebase", "Carry the stack to another release of the pin."),
    "landed": ("synctool.cli.patch_landed", "Prove which patches, or hunks of them, a release contains already."),
    "drop": ("synctool.cli.patch_drop", "Remove a patch from the stack, now or at the next pin."),
    "import": ("synctool.cli.patch_import", "Add patches from mails, plain diffs or a quilt series."),
    "export": ("synctool.cli.patch_export", "Write the stack as mails, as a quilt series or as one patch."),
    "pin": ("synctool.cli.patch_pin", "Check the pin against its source, or write the pin of a release."),
}


@click.group(name="patch", cls=LazyGroup, verbs=VERBS)
def command() -> None:
    """The patch stack on a pinned release.

    A stack is a folder with pin.toml (which release, by hash), series (the order) and one patch file for each concern.
    """
