"""Writes a tree of git objects out as a folder of plain files, safely."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from synctool.errors import Refused, RepositoryError
from synctool.git.objects import MAX_OBJECT_BYTES
from synctool.git.tree import EXECUTABLE, SYMLINK, Tree, check_path


def write_tree(tree: Tree, folder: Path, prefix: str = "") -> int:
    """Write all files below ``prefix`` into ``folder``, which appears whole or not at all. Returns their number.

    Raises:
        RepositoryError: the folder is there and not empty, or an object is missing.
        Refused: a file is over the size bound, or its path is not allowed.
    """
    if folder.exists() and any(folder.iterdir()):
        raise RepositoryError("the folder is not empty", where=str(folder), hint="name another, or empty it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        count = 0
        entries = list(tree.items(prefix))
        for start in range(0, len(entries), 512):
            part = entries[start : start + 512]
            contents = tree.store.read_many(entry.oid for _, entry in part)
            for path, entry in part:
                check_path(path)
                if entry.oid not in contents:
                    raise Refused(f"the file is over the bound of {MAX_OBJECT_BYTES:,} bytes", where=path)
                target = scratch / path
                target.parent.mkdir(parents=True, exist_ok=True)
                if entry.mode == SYMLINK:
                    target.symlink_to(os.fsdecode(contents[entry.oid]))
                else:
                    target.write_bytes(contents[entry.oid])
                    target.chmod(0o755 if entry.mode == EXECUTABLE else 0o644)
                count += 1
        scratch.chmod(0o755)
        if folder.exists():
            folder.rmdir()
        scratch.rename(folder)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return count
