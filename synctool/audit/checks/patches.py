"""Patches to the engine that the tree carries: each must fit the pin, and a hunk that was dropped must have landed there."""

from __future__ import annotations

from collections.abc import Iterator

from synctool.audit.context import Audit
from synctool.audit.engine.index import EngineIndex
from synctool.audit.files import Files
from synctool.audit.finding import Hit, Rule
from synctool.errors import SyncError
from synctool.patches.apply import split_lines
from synctool.patches.difftext import parse_patch
from synctool.patches.digest import patch_sha256
from synctool.patches.filepatch import Hunk, PatchText

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
        if patch_sha256(audit.tree.data(path)) not in engine.patched_with:
            yield from _unfit(engine, path, patch)
    kept = [(changed.path, hunk) for patch in now.values() for changed in patch.files for hunk in changed.hunks]
    for path, patch, when in _before(audit, engine):
        for changed in patch.files:
            for hunk in changed.hunks:
                if any(where == changed.path and _same(hunk, other) for where, other in kept):
                    continue
                if not _landed(engine, changed.path, hunk):
                    told = f"the hunk for {changed.path} ({_gist(hunk)}) was dropped{when}, and {engine.label} does not have it"
                    mend = "put it back, or show that it landed: 'vime-sync patch landed'"
                    yield Hit(DROPPED, f"{path} {changed.path}", path, 0, told, mend)


def _before(audit: Audit, engine: EngineIndex) -> Iterator[tuple[str, PatchText, str]]:
    """Patches that downstream carried: those before the sync, and the version that each had before its last change."""
    if audit.before is not None:
        yield from ((path, patch, "") for path, patch in _patches(audit.before, engine))
    for path, data, commit in audit.earlier_patches:
        patch = _parsed(path, data, engine)
        if patch is not None:
            yield path, patch, f" by {commit[:9]}"


def _patches(files: Files, engine: EngineIndex) -> Iterator[tuple[str, PatchText]]:
    """Patch files all of whose paths lie in the engine's package."""
    for path in files.ending(".patch", ".diff"):
        patch = _parsed(path, files.data(path), engine)
        if patch is not None:
            yield path, patch


def _parsed(path: str, data: bytes, engine: EngineIndex) -> PatchText | None:
    if f"/{engine.package}/".encode() not in data:
        return None
    try:
        patch = parse_patch(data, path)
    except SyncError:
        return None
    return patch if patch.files and all(file.path.startswith(f"{engine.package}/") for file in patch.files) else None


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
    """Whether two hunks do the same: most of what the first adds (or, where it adds nothing, removes) is in the second, too."""
    sign = "+" if any(kind == "+" for kind, _ in left.changes) else "-"
    mine = {line.strip() for kind, line in left.changes if kind == sign and line.strip()}
    other = {line.strip() for kind, line in right.changes if kind == sign}
    return len(mine & other) * 2 >= len(mine)


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
