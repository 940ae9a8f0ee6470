"""The crash log: what a bug report needs, in the user's state folder."""

from __future__ import annotations

import datetime
import os
import platform
import sys
import traceback
from pathlib import Path

from synctool import __version__


def state_folder() -> Path:
    """Where logs live, by the platform's convention."""
    import platformdirs

    return Path(platformdirs.user_state_dir("vime-sync", appauthor=False))


def moment() -> str:
    """This moment, for a file's name: names sort by time, and no two processes have the same."""
    return f"{datetime.datetime.now():%Y%m%dT%H%M%S.%f}-{os.getpid()}"


def write_crash_log(error: BaseException) -> Path:
    """Write traceback and versions, and return the file. Falls back to the temporary folder where the state folder can't be written."""
    import tempfile

    text = "\n".join(
        [
            f"vime-sync {__version__}, Python {platform.python_version()} on {platform.platform()}",
            f"arguments: {sys.argv[1:]}",
            "".join(traceback.format_exception(error)),
        ]
    )
    name = f"crash-{moment()}.log"
    for folder in (state_folder(), Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / name
            with path.open("x", errors="replace") as file:
                file.write(text)
        except OSError:
            continue
        return path
    return Path("(not written)")
