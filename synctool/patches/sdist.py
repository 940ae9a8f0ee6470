"""The pin's source archive as a file: what an image build carries along, so that the engine is proven again inside.

Kept in the user's cache by its hash and checked on each use. The other verbs read the archive once, into git objects (see ``store``).
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from synctool.cli.terminal import Progress, silent
from synctool.errors import Refused
from synctool.patches.acquire import download_pinned
from synctool.patches.archive import check_archive
from synctool.patches.pin import Pin
from synctool.patches.store import cache_folder


def kept_archive(pin: Pin, *, progress: Progress = silent) -> Path:
    """The archive that the pin names, from the cache if it is still the same, else from the package index.

    Raises:
        Refused: what the index holds is not what the pin names.
        EnvironmentFailure: it is not in the cache and cannot be had.
    """
    from filelock import FileLock

    folder = cache_folder() / "archives" / pin.archive.sha256
    path = folder / pin.archive.name
    if _is_pinned(path, pin):
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(str(folder) + ".lock"):
        if _is_pinned(path, pin):  # another process may have got it meanwhile
            return path
        with TemporaryDirectory(dir=folder.parent, prefix="get-") as scratch:
            partial = Path(scratch) / pin.archive.name
            download_pinned(pin, partial, progress)
            check_archive(partial, sha256=pin.archive.sha256, size=pin.archive.size)
            os.replace(partial, path)  # noqa: PTH105
    return path


def _is_pinned(path: Path, pin: Pin) -> bool:
    try:
        check_archive(path, sha256=pin.archive.sha256, size=pin.archive.size)
    except (OSError, Refused):
        return False
    return True
