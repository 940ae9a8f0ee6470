"""A candidate's file system in a folder, as a container runtime would show it: ``python -m synctool.images.unpack LAYOUT FOLDER``.

For ``docker/inside.sh``, which runs a command in it. Lower layers first; whiteouts (OCI image spec 1.1, ``layer.md``) take away what lower layers hold.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import sys
import tarfile
from pathlib import Path
from typing import IO

from synctool.errors import Refused, SyncError, UsageError
from synctool.images.contents import OPAQUE, entry_path, removed, verify
from synctool.images.oci import Image, read_image


def unpack(image: Image, root: Path) -> None:
    """Write all layers into the empty folder ``root``. Owners are kept where the caller is root, times and extended attributes are not.

    Raises:
        Refused: a layer is not what its digest says, or an entry would lie outside of the folder. What is there then is not to be used.
    """
    # As the kernel names it: parents are compared after their links were followed.
    _Unpacking(root.resolve()).run(image)


class _Unpacking:
    """``mine`` are the paths of the layer that is being read: its own whiteouts do not touch them, in whatever order they come."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.mine: set[str] = set()

    def run(self, image: Image) -> None:
        wrong = verify(image, self.take, self.mine.clear)
        if wrong:
            raise Refused(wrong[0], where=str(image.layout))

    def take(self, entry: tarfile.TarInfo, content: IO[bytes] | None) -> None:
        path = entry_path(entry)
        if (gone := removed(path)) is not None:
            self._remove(self._place(gone or "."), gone or ".", inside=posixpath.basename(path) == OPAQUE)
            return
        target = self._place(path)
        self.mine.update([path, *_parents(path)])
        if entry.isdir() and target.is_dir() and not target.is_symlink():
            target.chmod(entry.mode)
        else:
            if target.is_symlink() or target.is_file():
                target.unlink()
            elif target.exists() and target != self.root:
                shutil.rmtree(target)
            self._write(entry, content, target)
        if not entry.islnk() and os.geteuid() == 0:
            os.chown(target, entry.uid, entry.gid, follow_symlinks=False)
            if not entry.issym():
                target.chmod(entry.mode)  # a change of owner takes the set-user bit away

    def _write(self, entry: tarfile.TarInfo, content: IO[bytes] | None, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        if entry.isdir():
            target.mkdir()
        elif entry.issym():
            target.symlink_to(entry.linkname)
            return
        elif entry.islnk():
            target.hardlink_to(self._place(posixpath.normpath(entry.linkname.lstrip("/"))))
            return
        elif content is not None:
            with target.open("wb") as file:
                shutil.copyfileobj(content, file, 1 << 20)
        else:
            raise Refused("a device or a pipe in a layer", where=entry.name)
        target.chmod(entry.mode)

    def _place(self, path: str) -> Path:
        """Where a path of a layer is written; links of lower layers must not lead out of the folder."""
        target = self.root / path
        if (
            path == ".."
            or path.startswith("../")
            or not target.parent.resolve().is_relative_to(self.root if path != "." else "/")
        ):
            raise Refused("an entry would lie outside of the folder", where=path)
        return target

    def _remove(self, target: Path, path: str, *, inside: bool = False) -> None:
        """Take away what lower layers hold; what this layer holds stays. ``inside``: the folder itself stays too."""
        if target.is_symlink() or not target.is_dir():
            if path not in self.mine:
                target.unlink(missing_ok=True)
            return
        for child in list(target.iterdir()):
            self._remove(child, posixpath.normpath(posixpath.join(path, child.name)))
        if path not in self.mine and not inside:
            target.rmdir()


def _parents(path: str) -> list[str]:
    return [path[:at] for at, sign in enumerate(path) if sign == "/"]


if __name__ == "__main__":
    try:
        if len(sys.argv) != 3:
            raise UsageError("two arguments are needed: LAYOUT and FOLDER")
        unpack(read_image(Path(sys.argv[1])), Path(sys.argv[2]))
    except SyncError as error:
        sys.exit(f"error: {error}")
