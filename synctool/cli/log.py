"""The crash log: what a bug report needs, in the user's state folder."""

from __future__ import annotations

import platform
import sys
import time
import traceback
from pathlib import Path

from synctool import __version__


def state_folder() -> Path:
    """Where logs live, by the platform's convention."""
    import platformdirs

    return Path(platformdirs.user_state_dir("vime-sync", appauthor=False))


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
    name = f"crash-{time.strftime('%Y%m%dT%H%M%S')}.log"
    for folder in (state_folder(), Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / name
            path.write_text(text, errors="replace")
        except OSError:
            continue
        return path
    return Path("(not written)")
