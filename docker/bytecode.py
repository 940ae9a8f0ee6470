"""Compiles every Python file below folders, to the same bytes each time: bytecode.py FOLDER...

Byte code names its source by hash, not by time, and the hash is checked: a source that is changed later is read again. One process takes the files in
the order of their names, since what one compilation left in memory shows in the next one's bytes. A file in the syntax of another Python, which nobody
imports here, is left alone; `compileall` would fail because of it.
"""

from __future__ import annotations

import os
import py_compile
import sys
from pathlib import Path


def main(folders: list[str]) -> None:
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets shows, too
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | {"PYTHONHASHSEED": "0"})
    left = 0
    for path in sorted(path for folder in folders for path in Path(folder).rglob("*.py") if path.is_file()):
        try:
            py_compile.compile(str(path), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
        except py_compile.PyCompileError as error:
            if not isinstance(error.exc_value, SyntaxError | UnicodeDecodeError | ValueError):
                raise
            left += 1
            print(f"left alone: {path}: {error.exc_value}")
    print(f"compiled all but {left} files")


if __name__ == "__main__":
    main(sys.argv[1:])
