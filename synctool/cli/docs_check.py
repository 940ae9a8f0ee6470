"""``vime-sync docs check``: links, anchors, tables of contents, and languages in step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from synctool.cli.app import Context, verb
from synctool.cli.inputs import work_tree
from synctool.cli.report import Report
from synctool.errors import Exit, UsageError


@click.command(name="check")
@click.option("--folder", default="docs", show_default=True, help="The folder of the documentation.")
@click.option(
    "--language",
    "languages",
    multiple=True,
    help="Folder of a language below it; repeat it, the language that is written first in front.  [default: en, zh]",
)
@click.option("--accept", is_flag=True, help="Record that all languages are in step with the first one now.")
@click.option("--dry-run", is_flag=True, help="With --accept: write nothing.")
@verb
def command(context: Context, folder: str, languages: tuple[str, ...], accept: bool, dry_run: bool) -> Report:
    """Check the pages on disk: every link, anchor and table of contents, and that no section is missing or stale in a language.

    Exit code 1 when something is found. Addresses on the network are not visited.
    """
    from synctool.docs.check import check, in_step, page_paths
    from synctool.docs.page import parse
    from synctool.docs.record import PLACE, load, save

    if dry_run and not accept:
        raise UsageError("--dry-run needs --accept", hint="without --accept nothing is written anyway")
    root = work_tree(context.repo())
    top = folder.strip("/")
    if not (root / top).is_dir():
        raise UsageError("there is no such folder", where=folder, hint="name the documentation with --folder")
    spoken = languages or ("en", "zh")
    spoken = tuple(one for one in spoken if languages or (root / top / one).is_dir())
    for one in spoken:
        if not (root / top / one).is_dir():
            raise UsageError(f"there is no folder '{top}/{one}'", hint="name the languages' folders with --language")
    pages = {
        path: parse(path, (root / path).read_text(encoding="utf-8", errors="surrogateescape"))
        for path in page_paths(list(_files(root, top)), top)
    }
    record = load(root)
    messages = []
    if accept and spoken:
        accepted = in_step(pages, top, spoken)
        changed = sorted(path for path, hashes in accepted.items() if record.languages.get(path) != hashes)
        others = tuple(f"{top}/{one}/" for one in spoken[1:])
        kept = {path: hashes for path, hashes in record.languages.items() if not path.startswith(others)}
        record.languages = kept | accepted
        if not dry_run:
            save(root, record)
        told = "would be recorded" if dry_run else f"recorded in {PLACE}"
        messages.append(f"{len(changed)} pages {told} as in step with {top}/{spoken[0]}")
    found = check(pages, lambda path: _inside(root, path), folder=top, languages=spoken, recorded=record.languages)
    lines = [f"{one.path}:{one.line}: [{one.rule}] {one.message}\n    fix: {one.fix}" for one in found]
    data = {"folder": top, "languages": list(spoken), "pages": len(pages), "findings": [asdict(one) for one in found]}
    return Report(
        "docs check",
        data,
        summary=[*lines, f"{top}: {len(pages)} pages, {len(found) or 'no'} finding{'s' if len(found) != 1 else ''}"],
        messages=messages,
        exit_code=Exit.ATTENTION if found else Exit.OK,
    )


def _files(root: Path, top: str) -> Iterator[str]:
    """Files below the folder, from the root. Symbolic links are not followed: a page of a fork may point anywhere."""
    for folder, _, names in os.walk(root / top):
        for name in names:
            file = Path(folder) / name
            if not file.is_symlink():
                yield file.relative_to(root).as_posix()


def _inside(root: Path, path: str) -> bool:
    return not path.startswith("..") and (root / path).exists()
