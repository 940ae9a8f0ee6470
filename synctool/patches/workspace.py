"""The folder in which a patch is edited: the source as the patch leaves it, with a note of which patch that is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from synctool.errors import RepositoryError, UsageError
from synctool.git.tree import Entry, Tree
from synctool.patches.archive import read_folder
from synctool.patches.output import write_tree
from synctool.whole_file import write_whole

NOTE = ".vime-patch.json"
_SCHEMA = "vime-patch-edit/1"


@dataclass(frozen=True, slots=True)
class Note:
    """Which patch of which pin is edited here: the tree before it and its bytes' SHA-256 when the edit began."""

    patch: str
    pin: str
    before: str
    patch_sha256: str


def lay_out(tree: Tree, folder: Path, note: Note, overlay: Mapping[str, bytes] | None = None) -> int:
    """Write the tree and the note; ``overlay`` replaces contents (files with conflict markers). Returns the number of files."""
    count = write_tree(tree, folder)
    for path, data in (overlay or {}).items():
        write_whole(folder / path, data)
    write_whole(folder / NOTE, (json.dumps({"schema": _SCHEMA, **asdict(note)}, indent=1) + "\n").encode())
    return count


def read_note(folder: Path) -> Note:
    """The note of an edit folder.

    Raises:
        UsageError: it is not one.
    """
    try:
        value = json.loads((folder / NOTE).read_text())
        if value.pop("schema") != _SCHEMA:
            raise UsageError("the edit folder is of another version of vime-sync", where=str(folder))
        return Note(**value)
    except FileNotFoundError as error:
        raise UsageError(
            "not an edit folder", where=str(folder), hint="make one with 'vime-sync patch edit NAME FOLDER'"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise RepositoryError("the edit folder's note is damaged", where=str(folder / NOTE)) from error


def read_back(folder: Path, before: Tree) -> str:
    """The folder's content as a written tree; only what differs from ``before`` is stored. Byte code, ``.git`` and editor leavings are left out.

    Raises:
        Refused: a link or special file.
    """
    known = dict(before.items())
    tree = before.copy()
    seen = set()
    for member in read_folder(folder):
        old = known.get(member.path)
        if member.path == NOTE or (old is None and member.path.endswith(("~", ".swp", ".pyc"))):
            continue
        seen.add(member.path)
        oid = tree.store.hash("blob", member.data)
        if old is None or old != Entry(member.mode, oid):
            tree.set(member.path, Entry(member.mode, tree.store.write_blob(member.data)))
    for path in known.keys() - seen:
        tree.delete(path)
    return tree.write()
