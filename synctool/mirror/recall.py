"""From a resolved conflict to what is worth remembering: each hunk with the text that took its place."""

from __future__ import annotations

from synctool.git.repo import Repo
from synctool.mirror.memory import dump, remember
from synctool.mirror.model import Conflict
from synctool.mirror.pieces import Hunk, Piece, hunks_of, parse_conflicts
from synctool.mirror.session import Resolution, Session


def memory_files(repo: Repo, session: Session, who: str) -> dict[str, bytes]:
    """The files of conflict memory that a finished session adds, by path."""
    files: dict[str, bytes] = {}
    for conflict in session.conflicts:
        resolution = session.resolutions.get(conflict.path)
        if resolution is None:
            continue
        keys = {note.number: note.key for note in conflict.hunks}
        for number, hunk, text in resolved_hunks(repo, conflict, resolution):
            record = remember(
                hunk, text, keys[number], who=who, where=f"the sync of {session.title}", path=conflict.path
            )
            path, data = dump(record)
            files[path] = data
    return files


def resolved_hunks(repo: Repo, conflict: Conflict, resolution: Resolution) -> list[tuple[int, Hunk, bytes]]:
    """``(number, hunk, text)`` for each hunk whose resolution is known; for an edited file those that can be told apart by the settled lines around them."""
    if conflict.marked is None or not conflict.hunks:
        return []
    pieces = parse_conflicts(repo.objects.read(conflict.marked.oid, "blob"))
    hunks = hunks_of(pieces)
    if not resolution.whole:
        return [(n, hunks[n - 1], text) for n, text in sorted(resolution.choices.items())]
    if resolution.entry is None:
        return []
    return _align(pieces, repo.objects.read(resolution.entry.oid, "blob"))


def _align(pieces: tuple[Piece, ...], text: bytes) -> list[tuple[int, Hunk, bytes]]:
    """Find each hunk's resolution in the whole text: what stands between the settled pieces around it. Nothing is said where those are not found in order."""
    found: list[tuple[int, Hunk, bytes]] = []
    position, number = 0, 0
    waiting: Hunk | None = None
    for piece in pieces:
        if isinstance(piece, Hunk):
            number += 1
            waiting = piece
            continue
        settled = b"".join(piece)
        at = (
            text.find(settled, position)
            if waiting is not None
            else (position if text.startswith(settled, position) else -1)
        )
        if at < 0:
            return found
        if waiting is not None:
            found.append((number, waiting, text[position:at]))
            waiting = None
        position = at + len(settled)
    if waiting is not None:
        found.append((number, waiting, text[position:]))
    return found
