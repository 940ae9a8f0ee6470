"""Reads a source archive or an unpacked folder as ``(path, mode, content)``, refusing what a source tree never needs."""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
import zlib
from collections.abc import Iterator
from lzma import LZMAError
from pathlib import Path
from typing import NamedTuple

from synctool.errors import ConfigError, Refused
from synctool.git.tree import EXECUTABLE, FILE, check_path

MAX_FILES = 200_000
MAX_FILE_BYTES = 64 << 20
MAX_TOTAL_BYTES = 2 << 30

#: Never part of a source tree, whatever made them.
_LEFTOVERS = {".git", "__pycache__"}


class Member(NamedTuple):
    """One file: path below the top folder, git mode, content."""

    path: str
    mode: str
    data: bytes


def file_sha256(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_archive(path: Path, *, sha256: str, size: int) -> None:
    """Refuse an archive that is not the pinned one.

    Raises:
        Refused: its size or hash differ.
    """
    found = path.stat().st_size
    if found != size:
        why = "it was cut off" if found < size else "it is another file"
        raise Refused(
            f"archive has {found:,} bytes, the pin says {size:,}: {why}",
            where=str(path),
            hint="get it again; nothing of it was used",
        )
    digest = file_sha256(path)
    if digest != sha256:
        raise Refused(
            f"archive has sha256 {digest}, the pin says {sha256}", where=str(path), hint="nothing of it was used"
        )


def read_archive(path: Path) -> Iterator[Member]:
    """The files of a tar archive, without their one common top folder.

    Raises:
        Refused: a link, device, second top folder, unsafe or repeated name, or a bound is exceeded.
        ConfigError: the archive is damaged.
    """
    seen: set[str] = set()
    total = 0
    top: str | None = None
    try:
        with tarfile.open(path, "r:*") as archive:
            for info in archive:
                where = f"{path.name}: {info.name}"
                name = info.name.removeprefix("./").rstrip("/")
                first, _, rest = name.partition("/")
                if name.startswith("/") or (top is not None and first != top):
                    raise Refused("archive has more than one top folder", where=where)
                top = first
                if info.isdir():
                    continue
                if not info.isreg():
                    raise Refused("archive holds a link or a device", where=where, hint="pin a git commit instead")
                check_path(rest)
                if rest in seen:
                    raise Refused("archive holds a file twice", where=where)
                seen.add(rest)
                total += info.size
                if info.size > MAX_FILE_BYTES or total > MAX_TOTAL_BYTES or len(seen) > MAX_FILES:
                    raise Refused("archive is over a size bound", where=where)
                file = archive.extractfile(info)
                assert file is not None
                yield Member(rest, EXECUTABLE if info.mode & 0o100 else FILE, file.read())
    except (tarfile.TarError, EOFError, zlib.error, LZMAError, OSError) as error:
        raise ConfigError(f"archive is damaged: {error}", where=str(path)) from error


def read_folder(folder: Path) -> Iterator[Member]:
    """The files of an unpacked source folder, without ``.git`` and ``__pycache__``.

    Raises:
        Refused: a link or special file, or a bound is exceeded.
    """
    total = count = 0
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _LEFTOVERS)
        for name in [*folders, *sorted(files)]:
            path = Path(parent, name)
            found = path.lstat()
            if stat.S_ISDIR(found.st_mode):
                continue
            if not stat.S_ISREG(found.st_mode):
                raise Refused("folder holds a link or a special file", where=str(path))
            total, count = total + found.st_size, count + 1
            if found.st_size > MAX_FILE_BYTES or total > MAX_TOTAL_BYTES or count > MAX_FILES:
                raise Refused("folder is over a size bound", where=str(path))
            yield Member(
                path.relative_to(folder).as_posix(), EXECUTABLE if found.st_mode & 0o100 else FILE, path.read_bytes()
            )
