"""Three-way merge of texts by git's own ``merge-file``, as pieces. The files it needs lie in memory (tmpfs) where the machine has one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import TracebackType

from synctool.errors import EnvironmentFailure
from synctool.git.runner import run_git
from synctool.mirror.pieces import Pieces, lines_of, parse_conflicts

#: Long markers: no text has lines that begin like that, so the answer can be read back whatever the files quote.
_MARKER = 73
_NAMES = ("ours", "base", "theirs")


class TextMerger:
    """Runs merges one after another in one scratch folder. Use it as a context manager."""

    def __init__(self, git_dir: Path) -> None:
        self._git_dir = git_dir
        memory = "/dev/shm"
        where = memory if os.access(memory, os.W_OK | os.X_OK) else None
        self._folder = tempfile.TemporaryDirectory(prefix="vime-sync-", dir=where)
        self._files = [Path(self._folder.name) / name for name in _NAMES]

    def __enter__(self) -> TextMerger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    def merge(self, ours: bytes, base: bytes, theirs: bytes) -> Pieces:
        """The pieces of the merge. Each text must end in a newline or be empty, and must not be binary (see ``filetext``).

        Raises:
            EnvironmentFailure: git could not merge.
        """
        if ours == theirs or base == theirs:
            return (lines_of(ours),)
        if ours == base:
            return (lines_of(theirs),)
        for file, data in zip(self._files, (ours, base, theirs), strict=True):
            file.write_bytes(data)
        labels = [word for name in _NAMES for word in ("-L", name)]
        finished = run_git(
            self._git_dir,
            "merge-file",
            "-p",
            "--diff3",
            f"--marker-size={_MARKER}",
            *labels,
            *map(str, self._files),
            check=False,
            cwd=Path(self._folder.name),
        )
        # The exit status is the number of conflicts, cut at 127; beyond it is an error.
        if not 0 <= finished.returncode < 128:
            raise EnvironmentFailure(f"git merge-file failed: {finished.stderr.decode(errors='replace').strip()}")
        if finished.returncode == 0:
            return (lines_of(finished.stdout),)
        return parse_conflicts(finished.stdout, _MARKER)
