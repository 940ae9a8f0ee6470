"""Every rule for a stack folder that needs no source: headers, form, path policy, and that named tests exist."""

from __future__ import annotations

from pathlib import Path

from synctool.errors import SyncError
from synctool.patches.header import Finding, lint_header
from synctool.patches.pathpolicy import Allowed, check_patch
from synctool.patches.stack import Stack, StackPatch


def lint_stack(stack: Stack, root: Path) -> list[Finding]:
    """Findings of all patches, in order. ``root`` is where regression tests are looked for."""
    return [finding for patch in stack.patches for finding in lint_patch(patch, stack.pin.allowed, root)]


def lint_patch(patch: StackPatch, allowed: Allowed, root: Path) -> list[Finding]:
    """Findings of one patch."""
    try:
        text = patch.text
        check_patch(text, patch.where, allowed)
    except SyncError as error:
        return [
            Finding(
                error.where or patch.where, "form", error.title, error.hint or "make the patch again with 'git diff'"
            )
        ]
    found = lint_header(patch.header, patch.where)
    if not text.files:
        found.append(
            Finding(f"{patch.where}:1", "empty", "the patch changes nothing", "remove it: 'vime-sync patch drop'")
        )
    for change in text.files:
        at = f"{patch.where}:{change.at}"
        if change.new_oid is None and change.move is None and (change.hunks or change.binary):
            found.append(
                Finding(
                    at,
                    "index",
                    f"{change.path}: no index line",
                    "rewrite it in canonical form: 'vime-sync patch refresh'",
                )
            )
        elif change.new_oid is not None and len(change.new_oid) < 40:
            found.append(
                Finding(
                    at,
                    "index",
                    f"{change.path}: shortened ids in the index line",
                    "rewrite it in canonical form: 'vime-sync patch refresh'",
                )
            )
        for hunk in change.hunks:
            for kind, line in hunk.lines:
                if kind == "+" and line.startswith((b"<<<<<<< ", b">>>>>>> ", b"||||||| ")):
                    found.append(
                        Finding(
                            f"{patch.where}:{hunk.at}",
                            "marker",
                            f"{change.path}: a conflict marker is added",
                            "resolve it and refresh",
                        )
                    )
    for field in patch.header.fields:
        if field.name.lower() == "regression-test":
            for word in field.value.split():
                file = word.partition("::")[0]
                if file.endswith(".py") and not (root / file).is_file():
                    found.append(
                        Finding(
                            f"{patch.where}:{field.line}",
                            "regression-test",
                            f"{file} does not exist",
                            "name a test of this repository",
                        )
                    )
    return found
