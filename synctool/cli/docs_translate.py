"""``vime-sync docs translate``: upstream's pages into downstream's, section by section."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from synctool.cli.app import Context, verb
from synctool.cli.inputs import load, policy_option, work_tree
from synctool.cli.report import Report
from synctool.errors import Exit, NothingToDo, Refused, UsageError


@click.command(name="translate")
@policy_option
@click.argument("pages", nargs=-1)
@click.option("--at", "revision", help="Upstream's commit.  [default: what was fetched last]")
@click.option("--folder", default="docs", show_default=True, help="Upstream's folder, when no PAGES are named.")
@click.option("--accept", is_flag=True, help="Record sections that need a look as translated, as they stand here.")
@click.option("--dry-run", is_flag=True, help="Say what would happen and write nothing.")
@verb
def command(
    context: Context,
    policy_file: Path | None,
    pages: tuple[str, ...],
    revision: str | None,
    folder: str,
    accept: bool,
    dry_run: bool,
) -> Report:
    """Carry upstream's PAGES (upstream's paths; all mirrored ones below --folder) into the pages on disk.

    A section follows upstream while nobody edited it here; one that both sides changed stays, is reported, and gives exit code 1. In code blocks
    and addresses only flags are translated.
    """
    from synctool.docs.page import is_page, parse
    from synctool.docs.record import load as load_record
    from synctool.docs.record import save
    from synctool.docs.translate import ATTENTION, State, carry
    from synctool.policy.model import OwnerKind
    from synctool.translate.translator import decode
    from synctool.whole_file import write_whole

    repo = context.repo()
    inputs = load(repo, policy_file)
    tree = repo.tree(repo.resolve(revision) if revision else inputs.upstream_tip())
    prefix = folder.strip("/") + "/"
    chosen = list(pages) or [path for path, _ in tree.items() if path.startswith(prefix) and is_page(path)]
    root = work_tree(repo)
    record = load_record(root)
    before = dict(record.upstream)
    rows: list[dict[str, Any]] = []
    writes: dict[Path, str] = {}
    for path in chosen:
        entry = tree.get(path)
        if entry is None or not is_page(path):
            raise UsageError(f"upstream has no page '{path}'", hint="write .md or .rst paths from the root of upstream")
        place = inputs.translator.path(path)
        if inputs.policy.owner_of(place).kind is not OwnerKind.MIRROR:
            if pages:
                owner = inputs.policy.owner_of(place)
                raise UsageError(f"'{place}' is not mirrored ({owner.kind})", where=owner.where, hint=owner.reason)
            continue
        text = decode(repo.objects.read(entry.oid, "blob"))
        if text is None:
            continue
        file = _safe(root, place)
        old = file.read_bytes().decode("utf-8", "surrogateescape") if file.exists() else None
        ours = parse(place, old) if old is not None else None
        if ours is None and place in record.upstream and not pages:
            continue  # deleted here since: as for every mirrored file, it stays so unless it is asked for by name
        done = carry(inputs.translator, parse(path, text), place, ours, record.upstream.get(place, {}), accept=accept)
        record.upstream[place] = done.record
        if done.text != old:
            writes[file] = done.text
        rows += [
            {"page": place, "source": path, "line": one.line, "title": one.title, "state": one.state.value}
            | ({"translated": one.translated} if one.state in ATTENTION else {})
            for one in done.outcomes
            if one.state is not State.SAME
        ]
    open_ = [row for row in rows if State(row["state"]) in ATTENTION]
    quiet_ones = [row for row in rows if row["state"] not in (State.OURS, State.KEPT, State.DELETED_HERE)]
    if not writes and not open_ and record.upstream == before:
        raise NothingToDo(f"{len(chosen)} pages are in step with upstream")
    if not dry_run:
        for file, content in writes.items():
            write_whole(file, content)
        save(root, record)
    did = "would be written" if dry_run else "written"
    lines = [f"{row['page']}:{row['line']}: {row['state']}: {row['title'] or 'the beginning'}" for row in quiet_ones]
    return Report(
        "docs translate",
        {"pages": len(chosen), "written": [f.relative_to(root).as_posix() for f in writes], "sections": rows},
        summary=[*lines, f"{len(chosen)} pages, {len(writes)} {did}, {len(open_)} sections need a look"],
        messages=["edit those sections, then run this verb again with --accept"] if open_ else [],
        exit_code=Exit.ATTENTION if open_ else Exit.OK,
    )


def _safe(root: Path, place: str) -> Path:
    """The file of a downstream path, proven to lie in the work tree."""
    file = root / place
    resolved = Path(os.path.realpath(file))
    if file.is_symlink() or not resolved.is_relative_to(root.resolve()) or ".git" in Path(place).parts:
        raise Refused("the page would be written through a link or out of the repository", where=place)
    return file
