"""What CI names and does not find, tests that it does not run, and limits that its steps must raise."""

from __future__ import annotations

import re
from collections.abc import Iterator

from synctool.audit.context import Audit
from synctool.audit.embedded import shell_texts
from synctool.audit.finding import Hit, Rule

MISSING = Rule("ci-missing-file", "CI names a file that does not exist", "the step fails before it tests anything")
UNLISTED = Rule("ci-unlisted-test", "a new test that CI does not run", "it will rot unseen")
LIMIT = Rule(
    "ci-fd-limit",
    "a step runs a queue without raising the limit of open files",
    "the default soft limit of 1024 is too low: the run ends with 'too many open files'",
)
RULES = (MISSING, UNLISTED, LIMIT)

_FILE = re.compile(r"(?<![\w./$}*-])((?:[\w.-]+/)*[\w.-]+\.(?:py|sh))(?![\w/*-])")
#: Packages whose brokers hold a file descriptor a stream.
_HUNGRY = re.compile(r"^\s*(?:import|from)\s+straw\b|straw-queue|straw_queue", re.MULTILINE)


def check(audit: Audit) -> Iterator[Hit]:
    """Looks at CI's own files."""
    if not audit.ci_files:
        return
    yield from _missing(audit)
    yield from _unlisted(audit)
    yield from _limits(audit)


def _missing(audit: Audit) -> Iterator[Hit]:
    folders = sorted({path.rpartition("/")[0] for path in audit.tree.entries})
    for path in audit.ci_files:
        for number, line in enumerate(audit.tree.lines(path), 1):
            if line.lstrip().startswith("#") or "://" in line:
                continue
            for name in _FILE.findall(line.split(" # ")[0]):
                if name in audit.tree or _beside(audit, name, path, folders) or _is_prose(line, name):
                    continue
                yield Hit(
                    MISSING,
                    name,
                    path,
                    number,
                    f"{name} does not exist",
                    "name the file as it is called now, or drop the line",
                )


def _beside(audit: Audit, name: str, path: str, folders: list[str]) -> bool:
    """Whether the name is meant from a folder: the file's own, or any (a script joins folder and name)."""
    if name.startswith(("./", "../")):
        name = name.lstrip("./")
    own = path.rpartition("/")[0]
    if f"{own}/{name}" in audit.tree:
        return True
    return any(f"{folder}/{name}" in audit.tree for folder in folders)


def _is_prose(line: str, name: str) -> bool:
    """A name in a sentence of a docstring or a label is no command."""
    return re.search(
        rf"\w\s+\(?(?:see\s+)?`*{re.escape(name)}`*[).,;:]?\s*(?:\w+\s+\w+|$)", line
    ) is not None and not re.search(r"python|bash|sh |pytest|test_", line)


def _unlisted(audit: Audit) -> Iterator[Hit]:
    if audit.before is None and audit.base is None:
        return
    named = "\n".join(audit.tree.text(path) or "" for path in audit.ci_files)
    runs_folder = {
        folder.rstrip("/")
        for folder in re.findall(r"(?:pytest|python -m pytest)[^\n]*?\s((?:[\w-]+/?)+)(?=\s|$)", named)
    }
    for path in audit.tree.ending(".py"):
        name = path.rpartition("/")[2]
        if not name.startswith("test_") or not _is_new(audit, path):
            continue
        parents = [path[:at] for at in range(len(path)) if path[at] == "/"]
        if name in named or any(parent in runs_folder for parent in parents):
            continue
        yield Hit(
            UNLISTED,
            "new tests",
            path,
            0,
            f"{path} is in no step",
            "add it to a step of CI, or say in the baseline why not",
        )


def _is_new(audit: Audit, path: str) -> bool:
    if audit.before is not None:
        return path not in audit.before
    return audit.base is not None and audit.through is not None and path in audit.through and path not in audit.base


def _limits(audit: Audit) -> Iterator[Hit]:
    for shell in shell_texts(audit):
        if (
            shell.path not in audit.ci_files
            or re.search(r"ulimit\s+-\w*n", shell.text)
            or "RLIMIT_NOFILE" in shell.text
            or "prlimit" in shell.text
        ):
            continue
        for name in _FILE.findall(shell.text):
            text = audit.tree.text(name) if name in audit.tree else None
            if text is not None and _HUNGRY.search(text) and "RLIMIT_NOFILE" not in text:
                line = shell.line + shell.text[: shell.text.find(name)].count("\n")
                yield Hit(
                    LIMIT,
                    name,
                    shell.path,
                    line,
                    f"{name} uses a queue and the step keeps the soft limit",
                    'add: ulimit -Sn "$(ulimit -Hn)"',
                )
