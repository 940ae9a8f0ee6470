"""What ruff's pyflakes and syntax rules say about the files that the sync changed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from synctool.audit.context import Audit
from synctool.audit.finding import Hit, Rule
from synctool.errors import EnvironmentFailure

RULE = Rule(
    "lint",
    "the linter objects to a changed file",
    "undefined names fail when the line runs; unused ones are what a merge left behind",
)
RULES = (RULE,)

#: Syntax errors and undefined names everywhere; in changed files, all of pyflakes but what is a matter of taste.
_ALWAYS = ("E9", "F821", "F822", "F823", "invalid-syntax")
_TASTE = ("F401", "F541", "F403", "F405", "F722")


def check(audit: Audit) -> Iterator[Hit]:
    """Runs ruff on blobs in a folder of its own, with its default settings: the repository's configuration is not read.

    Raises:
        EnvironmentFailure: ruff is not installed.
    """
    paths = [path for path in audit.tree.ending(".py") if ".." not in path.split("/")]
    if not paths:
        return
    audit.tree.preload(paths)
    with tempfile.TemporaryDirectory(prefix="vime-sync-") as name:
        folder = Path(name)
        for number, path in enumerate(paths):
            (folder / f"{number}.py").write_bytes(audit.tree.data(path))
        for found in _ruff(folder):
            path = paths[int(Path(found["filename"]).stem)]
            code = found["code"] or "invalid-syntax"
            inherited = not code.startswith(("E9", "invalid", "F821")) and _was_there(audit, path, found)
            if inherited:
                continue
            if code.startswith(_ALWAYS) or (path in audit.changed and not code.startswith(_TASTE)):
                yield Hit(
                    RULE,
                    path,
                    path,
                    found["location"]["row"],
                    f"{code}: {found['message']}",
                    "mend the line, or mark it with a noqa that says why",
                )
            elif code == "F401" and path in audit.changed and not path.endswith("__init__.py"):
                yield Hit(RULE, path, path, found["location"]["row"], f"{code}: {found['message']}", "drop the import")


def _was_there(audit: Audit, path: str, found: dict) -> bool:  # type: ignore[type-arg]
    """A line that downstream had before, or that upstream has, is nothing that the sync broke (unless it names something undefined)."""
    line = audit.tree.lines(path)[found["location"]["row"] - 1]
    return any(
        files is not None and path in files and line in files.lines(path) for files in (audit.before, audit.through)
    )


def _ruff(folder: Path) -> list[dict]:  # type: ignore[type-arg]
    beside = Path(sys.executable).with_name("ruff")
    program = str(beside) if beside.is_file() else shutil.which("ruff")
    if program is None:
        raise EnvironmentFailure(
            "ruff is not installed", hint="pip install ruff, or leave the check out with --skip lint"
        )
    command = [
        program,
        "check",
        "--isolated",
        "--no-cache",
        "--select",
        "E9,F",
        "--output-format",
        "json",
        "--exit-zero",
        ".",
    ]
    finished = subprocess.run(command, cwd=folder, capture_output=True)
    try:
        return list(json.loads(finished.stdout))
    except ValueError:
        raise EnvironmentFailure(
            f"ruff failed: {finished.stderr.decode(errors='replace')[:200]}", where=program
        ) from None
