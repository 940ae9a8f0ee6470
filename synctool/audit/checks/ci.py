"""What CI names and does not find, tests that it does not run, and limits that its steps must raise."""

from __future__ import annotations

import re
from collections.abc import Iterator

from synctool.audit.context import Audit
from synctool.audit.embedded import shell_texts
from synctool.audit.finding import Hit, Rule
from synctool.audit.shelltext import commands

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

#: What most systems set.
_SOFT = 1024


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
    raised: dict[tuple[str, int], int] = {}  # the first line of a shell that raises its limit
    for shell in (shells := [one for one in shell_texts(audit) if one.path in audit.ci_files]):
        line = _raises(shell.text, shell.line)
        if line is not None:
            raised[shell.path, shell.shell] = min(line, raised.get((shell.path, shell.shell), line))
    for shell in shells:
        for found in _FILE.finditer(shell.text):
            name, line = found[1], shell.line + shell.text.count("\n", 0, found.start())
            text = audit.tree.text(name) if name in audit.tree else None
            if text is None or not _HUNGRY.search(text) or raised.get((shell.path, shell.shell), line + 1) <= line:
                continue
            if "RLIMIT_NOFILE" not in text and not (name.endswith(".sh") and _raises(text) is not None):
                yield Hit(
                    LIMIT,
                    name,
                    shell.path,
                    line,
                    f"{name} uses a queue and the step keeps the soft limit",
                    "before it, in the same step, add: ulimit -S -n hard",
                )


def _raises(text: str, first_line: int = 1) -> int | None:
    """The line of the first command that raises the soft limit of open files, whatever the spelling; None if there is none."""
    lines = [command.line for command in commands(text, first_line) if _is_raise(command.texts())]
    # Set from within a program, whose text is an argument here.
    lines += [first_line + text.count("\n", 0, found.start()) for found in re.finditer("RLIMIT_NOFILE", text)]
    return min(lines, default=None)


def _is_raise(words: list[str]) -> bool:
    """``ulimit -Sn N``, ``ulimit -S -n hard``, ``prlimit --nofile=N``, ``docker run --ulimit nofile=N``; not a question, nor a limit that is no higher."""
    if words[:1] == ["ulimit"] or words[:2] == ["builtin", "ulimit"]:
        flags = "".join(word[1:] for word in words if re.fullmatch("-[A-Za-z]+", word))
        limits = [word for word in words[words.index("ulimit") + 1 :] if not word.startswith("-")]
        return "n" in flags and ("S" in flags or "H" not in flags) and any(map(_is_higher, limits))
    told = re.search(
        r"(?:^| )(?:--nofile[= ]|-n ?)(\S+)" if "prlimit" in words else r"--ulimit[= ]nofile=(\S+)", " ".join(words)
    )
    return told is not None and _is_higher(re.split("[:]", told[1])[0])


def _is_higher(limit: str) -> bool:
    """A number is compared with the usual soft limit; a word (``hard``, ``unlimited``) or an expansion is believed."""
    return not limit.isdigit() or int(limit) > _SOFT
