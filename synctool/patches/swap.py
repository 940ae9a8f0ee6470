"""Replaces many files of a package folder at once, so that a kill at any moment leaves the old folder or the new one.

Where the file system can exchange two folders in one step (Linux ``renameat2``), a copy of the folder is made beside it by hard links, the
changed files are put into the copy, and the two are exchanged. On an overlay (an image being built) linking would copy every file into the new
layer and folders of lower layers cannot be renamed: there the new files are staged first, then a journal is written, then they are renamed
into place one by one, and a journal that is found later is carried to its end.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from synctool.errors import RepositoryError

_AT_FDCWD = -100
_EXCHANGE = 2
_SUFFIX = ".vime-patch-work"
_JOURNAL = "vime-patch-journal.json"


@dataclass(frozen=True, slots=True)
class Interrupted:
    """What a killed run left: ``journal`` lists paths that are still to be switched, None when the folders themselves were to be exchanged."""

    work: Path
    pending: tuple[str, ...] | None


def work_folder(package: Path) -> Path:
    """Where a run keeps its staged files: beside the package."""
    return package.with_name(f".{package.name}{_SUFFIX}")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on a folder. Nothing is left behind.

    Raises:
        RepositoryError: another process holds it.
    """
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RepositoryError(
                "another vime-sync is patching here", where=str(folder), hint="wait for it to end"
            ) from error
        yield
    finally:
        os.close(handle)


def interrupted(package: Path) -> Interrupted | None:
    """Left-overs of a killed run, or None. Changes nothing."""
    work = work_folder(package)
    if not work.exists():
        return None
    journal = _read_journal(work)
    if journal is None:
        return Interrupted(work, None)
    return Interrupted(work, tuple(path for path, digest in journal.items() if _digest(package / path) != digest))


def recover(package: Path) -> None:
    """Carry a journal to its end, and remove what a killed run left."""
    work = work_folder(package)
    if not work.exists():
        return
    journal = _read_journal(work)
    if journal is not None:
        _switch_files(package, work, journal)
    shutil.rmtree(work)


def replace_files(package: Path, changes: Mapping[str, bytes | None]) -> Literal["exchange", "files"]:
    """Write (bytes) or remove (None) files given by their path below ``package``, all at once. Returns how it was done.

    Compiled ``.pyc`` files of changed modules go with them. A file keeps its permissions; a new one gets 0644.
    """
    recover(package)
    work = work_folder(package)
    if _can_exchange(package):
        try:
            _exchange_copy(package, work, changes)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
                raise
            shutil.rmtree(work, ignore_errors=True)
        else:
            shutil.rmtree(work)
            return "exchange"
    _stage(package, work, changes)
    journal = _read_journal(work)
    assert journal is not None
    _switch_files(package, work, journal)
    shutil.rmtree(work)
    return "files"


# ---- one exchange ---------------------------------------------------------------------------------------------------------------------


def _can_exchange(package: Path) -> bool:
    if not hasattr(ctypes.CDLL(None), "renameat2"):
        return False
    return _file_system(package) not in ("overlay", "fuse.fuse-overlayfs", "aufs", "nfs", "nfs4")


def _file_system(path: Path) -> str:
    """The type of the file system that holds ``path``; empty when unknown."""
    best = ("", "")
    try:
        rows = Path("/proc/self/mounts").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    for row in rows:
        _, place, kind, *_ = row.split(" ")
        mount = place.replace("\\040", " ")
        if (str(path) + "/").startswith(mount.rstrip("/") + "/") and len(mount) >= len(best[0]):
            best = (mount, kind)
    return best[1]


def _exchange_copy(package: Path, work: Path, changes: Mapping[str, bytes | None]) -> None:
    skipped = {name for path in changes for name in (path, *_compiled(package, path))}
    for parent, folders, files in os.walk(package):
        relative = Path(parent).relative_to(package)
        target = work / relative
        target.mkdir()
        for name in list(folders):
            if Path(parent, name).is_symlink():
                files.append(name)
                folders.remove(name)
        for name in files:
            if (relative / name).as_posix() not in skipped:
                os.link(Path(parent, name), target / name, follow_symlinks=False)
    for path, data in changes.items():
        if data is not None:
            _write_like(work / path, data, package / path)
    _prune(work, changes)
    for parent, _, _ in os.walk(package):  # times and permissions of folders, last: the writes above changed them
        target = work / Path(parent).relative_to(package)
        if target.is_dir():
            _copy_owner(Path(parent), target)
    _exchange(work, package)


def _exchange(one: Path, other: Path) -> None:
    """Exchange two folders in one step."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), ctypes.c_uint(_EXCHANGE)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(other))


# ---- file by file, with a journal --------------------------------------------------------------------------------------------------------


def _stage(package: Path, work: Path, changes: Mapping[str, bytes | None]) -> None:
    files = work / "files"
    files.mkdir(parents=True)
    for path, data in changes.items():
        if data is not None:
            _write_like(files / path, data, package / path)
    journal = {path: None if data is None else hashlib.sha256(data).hexdigest() for path, data in changes.items()}
    partial = work / "journal.partial"
    partial.write_text(json.dumps(journal))
    partial.replace(work / _JOURNAL)


def _read_journal(work: Path) -> dict[str, str | None] | None:
    """The journal, or None when there is none: then nothing was switched yet."""
    try:
        journal: dict[str, str | None] = json.loads((work / _JOURNAL).read_text())
    except FileNotFoundError:
        return None
    return journal


def _switch_files(package: Path, work: Path, journal: Mapping[str, str | None]) -> None:
    for path, digest in journal.items():
        target = package / path
        for compiled in _compiled(package, path):
            (package / compiled).unlink(missing_ok=True)
        if digest is None:
            target.unlink(missing_ok=True)
        elif _digest(target) != digest:
            target.parent.mkdir(parents=True, exist_ok=True)
            (work / "files" / path).replace(target)
    _prune(package, journal)


# ---- common ------------------------------------------------------------------------------------------------------------------------------


def _digest(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return None


def _compiled(package: Path, path: str) -> list[str]:
    """Byte-code files of a module, by their path below the package."""
    folder, _, name = path.rpartition("/")
    if not name.endswith(".py"):
        return []
    cache = package / folder / "__pycache__"
    return (
        [found.relative_to(package).as_posix() for found in cache.glob(f"{name[:-3]}.*.pyc")] if cache.is_dir() else []
    )


def _write_like(target: Path, data: bytes, model: Path) -> None:
    """Write a file with the permissions and owner of another, if that exists."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    if model.exists():
        _copy_owner(model, target, times=False)
    else:
        target.chmod(0o644)


def _copy_owner(model: Path, target: Path, *, times: bool = True) -> None:
    found = model.stat()
    if os.geteuid() == 0:
        os.chown(target, found.st_uid, found.st_gid)
    target.chmod(found.st_mode & 0o7777)
    if times:
        os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


def _prune(root: Path, changes: Mapping[str, object]) -> None:
    """Remove folders that removals left empty, but for their byte code."""
    for path in changes:
        folder = (root / path).parent
        while folder != root and folder.is_dir():
            if any(child.name != "__pycache__" for child in folder.iterdir()):
                break
            shutil.rmtree(folder)
            folder = folder.parent
