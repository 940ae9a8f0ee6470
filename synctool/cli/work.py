"""``vime-sync work``: upstream edits that were not merged (to ported paths, or dropped where downstream rewrote the place), as translated diffs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from synctool.cli.app import Context, verb
from synctool.cli.report import Report

if TYPE_CHECKING:
    from rich.console import Console

#: Edits of one change that are listed for people.
_MOST = 5


@click.command(name="work")
@click.option(
    "--write",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write one patch a change into this folder.",
)
@click.option("--dry-run", is_flag=True, help="With --write: say what would be written.")
@verb
def command(context: Context, folder: Path | None, dry_run: bool) -> Report:
    """List the work that the last mirror run filed: upstream edits that were not merged, translated, one entry a file, each with the reason.

    Once a change is ported, say so with a [[port]] entry (commit, downstream, paths) in the sync's manifest: it is not filed again.
    """
    from synctool.mirror import store
    from synctool.mirror.session import Session

    repo = context.repo()
    session = Session.from_json(store.require(repo, running=False).value)
    rows = [{key: value for key, value in item.items() if key != "diff"} for item in session.work]
    patches: dict[str, bytes] = {}
    for number, change in enumerate(dict.fromkeys(item["change"] for item in session.work), 1):
        items = [item for item in session.work if item["change"] == change]
        name = f"{number:04d}-{items[0]['label'].lstrip('#')}.patch"
        patches[name] = b"".join(repo.objects.read(item["diff"], "blob") for item in items)
    if folder is not None and not dry_run:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in patches.items():
            temporary = folder / f".{name}.partial"
            temporary.write_bytes(data)
            temporary.replace(folder / name)
    counts = Counter(item["label"] for item in session.work)

    def render(console: Console) -> None:
        for label, count in counts.items():
            console.print(f"{label}: {count} edit(s)", markup=False, highlight=False)
            items = [item for item in session.work if item["label"] == label]
            for item in items[:_MOST]:
                console.print(f"  {item['path']}: {item['reason']}", markup=False, highlight=False, soft_wrap=True)
            if count > _MOST:
                console.print(f"  and {count - _MOST} more (--json lists all)", markup=False, highlight=False)

    written = [str(folder / name) for name in patches] if folder else []
    summary = [f"{len(rows)} edits of {len(counts)} changes filed"]
    summary += [f"{'would write' if dry_run else 'wrote'} {len(written)} patches to {folder}"] if folder else []
    return Report("work", {"items": rows, "written": [] if dry_run else written}, summary, render)
