"""Patches to the engine that the tree carries: each must fit the pin, and a hunk that was dropped must have landed there."""

from __future__ import annotations

from collections.abc import Iterator

from synctool.audit.context import Audit
from synctool.audit.engine.index import EngineIndex
from synctool.audit.files import Files
from synctool.audit.finding import Hit, Rule
from synctool.errors import SyncError
from synctool.patches.apply import split_lines
from synctool.patches.difftext import Hunk, PatchText, parse_patch

DROPPED = Rule(
    "dropped-hunk",
    "a hunk of an engine patch was dropped and has not landed in the pin",
    "the fault that it mended comes back",
)
UNFIT = Rule("patch-unfit", "a patch does not fit the pinned engine", "the image does not build, or builds without it")
RULES = (DROPPED, UNFIT)


def check(audit: Audit) -> Iterator[Hit]:
    """Needs the engine; for dropped hunks also downstream before the sync (or upstream's base, for a patch that came from there)."""
    engine = audit.engine
    if engine is None:
        return
    now = dict(_patches(audit.tree, engine))
    for path, patch in now.items():
        yield from _unfit(engine, path, patch)
    for path, patch in _patches(audit.before, engine) if audit.before is not None else ():
        kept = [(f.path, h) for other in now.values() for f in other.files for h in f.hunks]
        for changed in patch.files:
            for hunk in changed.hunks:
                if any(where == changed.path and _same(hunk, other) for where, other in kept):
                    continue
                if not _landed(engine, changed.path, hunk):
                    at = next((h.at for f in now.get(path, PatchText(b"", ())).files for h in f.hunks), 0)
                    message = (
                        f"the hunk for {changed.path} ({_gist(hunk)}) is gone, and {engine.label} does not have it"
                    )
                    yield Hit(
                        DROPPED,
                        f"{path} {changed.path}",
                        path,
                        at,
                        message,
                        "put it back, or show that it landed: 'vime-sync patch landed'",
                    )


def _patches(files: Files, engine: EngineIndex) -> Iterator[tuple[str, PatchText]]:
    """Patch files all of whose paths lie in the engine's package."""
    for path in files.ending(".patch", ".diff"):
        data = files.data(path)
        if f"/{engine.package}/".encode() not in data:
            continue
        try:
            patch = parse_patch(data, path)
        except SyncError:
            continue
        if patch.files and all(file.path.startswith(f"{engine.package}/") for file in patch.files):
            yield path, patch


def _unfit(engine: EngineIndex, path: str, patch: PatchText) -> Iterator[Hit]:
    for changed in patch.files:
        if changed.old_path is None:
            continue
        if changed.old_path not in engine.source.paths:
            yield Hit(UNFIT, path, path, changed.at, f"{engine.label} has no {changed.old_path}", "refresh the patch")
            continue
        lines = split_lines(engine.source.read(changed.old_path))
        for hunk in changed.hunks:
            if not _contains(lines, hunk.old) and not _contains(lines, hunk.new):
                yield Hit(
                    UNFIT,
                    path,
                    path,
                    hunk.at,
                    f"the hunk for {changed.path} ({_gist(hunk)}) fits nowhere in {engine.label}",
                    "refresh the patch",
                )


def _landed(engine: EngineIndex, path: str, hunk: Hunk) -> bool:
    """Whether the pin has the hunk's result: all its added lines in a row of its new side without context, or its whole new side."""
    if path not in engine.source.paths:
        return False
    lines = split_lines(engine.source.read(path))
    if _contains(lines, hunk.new):
        return True
    added = [line for sign, line in hunk.changes if sign == "+"]
    removed = [line for sign, line in hunk.changes if sign == "-"]
    return bool(added) and _contains(lines, added) and not (removed and _contains(lines, removed))


def _same(left: Hunk, right: Hunk) -> bool:
    return left.changes == right.changes


def _gist(hunk: Hunk) -> str:
    told = next(
        (line for sign, line in hunk.changes if sign == "+" and line.strip() and not line.strip().startswith(b"#")), b""
    )
    told = told or next((line for _, line in hunk.changes), b"")
    return told.strip().decode(errors="replace")[:60]


def _contains(lines: list[bytes], wanted: list[bytes]) -> bool:
    if not wanted:
        return True
    size = len(wanted)
    first = wanted[0]
    return any(line == first and lines[at : at + size] == wanted for at, line in enumerate(lines))
