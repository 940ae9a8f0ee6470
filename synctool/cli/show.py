"""``vime-sync show``: one conflict in full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from synctool.cli.app import Context, verb
from synctool.cli.report import Report
from synctool.cli.running import conflict_json, label, running
from synctool.errors import UsageError
from synctool.mirror.pieces import Pieces, hunks_of, parse_conflicts

if TYPE_CHECKING:
    from rich.console import Console

#: Lines of a side shown for one hunk before it is cut.
_MOST = 40


@click.command(name="show")
@click.argument("path")
@click.option(
    "--side",
    type=click.Choice(["base", "ours", "theirs", "merged"]),
    help="Print this side of the file, whole, and nothing else.",
)
@click.option(
    "--all-proposals", is_flag=True, help="Also proposals of kinds that are not right often enough to be offered."
)
@verb
def command(context: Context, path: str, side: str | None, all_proposals: bool) -> Report:
    """Show one conflict: what each side says, hunk by hunk, which upstream changes it comes from, and what could resolve it."""
    from synctool.mirror.steps import outcome

    now = running(context.repo())
    repo, session = now.repo, now.session
    conflict = session.conflict(path)
    if side is not None:
        entry = (
            outcome(repo, conflict, session.resolutions.get(conflict.path))
            if side == "merged"
            else getattr(conflict, side)
        )
        if entry is None:
            raise UsageError(
                f"there is no file on the side {side!r}", where=conflict.path, hint="the conflict is about its absence"
            )
        text = repo.objects.read(entry.oid, "blob").decode("utf-8", "surrogateescape")
        shown = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        return Report("show", {"path": conflict.path, "side": side, "text": shown}, body=text)
    resolution = session.resolutions.get(conflict.path)
    pieces: Pieces = ()
    if conflict.hunks and conflict.marked is not None:
        pieces = parse_conflicts(repo.objects.read(conflict.marked.oid, "blob"))
    changes = {change["commit"]: change for change in session.plan["changes"]}
    hunks: list[dict[str, Any]] = []
    for note, hunk in zip(conflict.hunks, hunks_of(pieces), strict=True):
        hunks.append(
            {
                "number": note.number,
                "changes": [
                    {"label": label(changes, oid), "subject": changes.get(oid, {}).get("subject", "")}
                    for oid in note.changes
                ],
                **{
                    name: b"".join(getattr(hunk, name)).decode("utf-8", "replace")
                    for name in ("base", "ours", "theirs")
                },
                "proposals": [
                    {
                        "kind": p.kind,
                        "text": p.text.decode("utf-8", "replace"),
                        "rests_on": p.rests_on,
                        "offered": p.offered,
                    }
                    for p in note.proposals
                    if p.offered or all_proposals
                ],
                "chosen": bool(resolution and not resolution.whole and note.number in resolution.choices),
            }
        )
    data = {**conflict_json(session, conflict), "hunk_texts": hunks}

    def render(console: Console) -> None:
        console.print(f"{conflict.path}: {conflict.kind}", style="bold", markup=False, highlight=False)
        if conflict.note:
            console.print(f"  {conflict.note}", markup=False, highlight=False)
        for hunk in hunks:
            _render_hunk(console, hunk, len(hunks))

    messages = [] if hunks else ["there are no hunks to choose among: take ours, theirs, or --file"]
    return Report("show", data, render=render, messages=messages)


def _render_hunk(console: Console, hunk: dict[str, Any], total: int) -> None:
    state = " (chosen)" if hunk["chosen"] else ""
    console.print(f"\nhunk {hunk['number']} of {total}{state}", style="bold", markup=False, highlight=False)
    for change in hunk["changes"]:
        console.print(f"  from {change['label']} {change['subject']}", style="dim", markup=False, highlight=False)
    for name, style in (("base", "dim"), ("ours", "green"), ("theirs", "cyan")):
        _text(console, name, hunk[name], style)
    for proposal in hunk["proposals"]:
        offered = "" if proposal["offered"] else ", not offered by default"
        _text(console, f"proposal: {proposal['kind']} ({proposal['rests_on']}{offered})", proposal["text"], "yellow")


def _text(console: Console, title: str, text: str, style: str) -> None:
    console.print(f"  {title}", style=f"bold {style}", markup=False, highlight=False)
    lines = text.splitlines()
    for line in lines[:_MOST]:
        console.print(f"    {line}", style=style, markup=False, highlight=False, soft_wrap=True)
    if len(lines) > _MOST:
        console.print(
            f"    ... {len(lines) - _MOST} more lines ('--side' prints a side whole)", style="dim", highlight=False
        )
    if not lines:
        console.print("    (nothing)", style="dim", highlight=False)
