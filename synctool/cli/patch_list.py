"""``vime-sync patch list``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from synctool.cli.app import Context, verb
from synctool.cli.patch_common import Where, stack_options
from synctool.cli.report import Report
from synctool.errors import SyncError

if TYPE_CHECKING:
    from rich.console import Console


@click.command(name="list")
@verb
@stack_options
def command(context: Context, where: Where) -> Report:
    """List the stack: each patch with its upstream state, purpose, files and digest.

    Needs neither the source nor the network.
    """
    stack = where.load()
    rows: list[dict[str, Any]] = []
    messages = []
    for patch in stack.patches:
        try:
            header, files = patch.header, patch.text.files
        except SyncError as error:
            messages.append(f"warning: {error}")
            rows.append({"patch": patch.name, "sha256": patch.sha256, "error": str(error)})
            continue
        lines = [line for change in files for hunk in change.hunks for line in hunk.changes]
        rows.append(
            {
                "patch": patch.name,
                "sha256": patch.sha256,
                "description": header.subject,
                "upstream_status": header.get("Upstream-Status"),
                "forwarded": header.get("Forwarded"),
                "removal_condition": header.get("Removal-Condition"),
                "regression_tests": [f.value for f in header.fields if f.name.lower() == "regression-test"],
                "drop_at_next_pin": header.drop_at_next_pin,
                "files": [change.path for change in files],
                "added": sum(kind == "+" for kind, _ in lines),
                "removed": sum(kind == "-" for kind, _ in lines),
            }
        )
    data = {
        "pin": {"package": stack.pin.package, "version": stack.pin.version},
        "digest": stack.digest,
        "patches": rows,
    }

    def render(console: Console) -> None:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("patch", "state", "files", "+", "-", "purpose"):
            table.add_column(title, overflow="fold", justify="right" if title in ("files", "+", "-") else "left")
        for row in rows:
            if "error" in row:
                table.add_row(row["patch"], "unreadable", "", "", "", "")
                continue
            state = (row["upstream_status"] or "(none)").partition(" ")[0] + (
                ", drops at next pin" if row["drop_at_next_pin"] else ""
            )
            table.add_row(
                row["patch"], state, str(len(row["files"])), str(row["added"]), str(row["removed"]), row["description"]
            )
        console.print(table)

    summary = [f"{len(rows)} patches on {stack.pin.label}, stack digest {stack.digest[:16]}"]
    return Report("patch list", data, summary=summary, render=render if rows else None, messages=messages)
