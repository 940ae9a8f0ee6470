"""Finds shell text where it hides: scripts, commands of CI files, ``RUN`` lines of Dockerfiles."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from synctool.audit.context import Audit

_COMMAND_KEYS = ("command", "commands", "run", "script", "before_script", "after_script")


@dataclass(frozen=True, slots=True)
class ShellText:
    """Shell text in a file, from a line on. ``shell`` tells apart, within a file, what runs in shells of its own: the commands of one step share one."""

    path: str
    line: int
    text: str
    shell: int = 0


def shell_texts(audit: Audit) -> list[ShellText]:
    """All shell text of the tree."""
    found = [ShellText(path, 1, audit.tree.text(path) or "") for path in audit.scripts if not path.endswith("justfile")]
    for path in audit.ci_files:
        if path.endswith((".yml", ".yaml")):
            found += _of_yaml(path, audit.tree.text(path) or "")
    for path in sorted(audit.tree.entries):
        if path.rpartition("/")[2].startswith("Dockerfile"):
            found += list(_of_dockerfile(path, audit.tree.text(path) or ""))
    return found


def _of_yaml(path: str, text: str) -> list[ShellText]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        documents = list(YAML().load_all(text))
    except YAMLError:
        return []
    return list(_walk(path, documents, text.split("\n"), count()))


def _walk(path: str, node: Any, lines: list[str], shells: Iterator[int]) -> Iterator[ShellText]:
    if isinstance(node, dict):
        shell = next(shells)
        for key, value in node.items():
            if key in _COMMAND_KEYS:
                places = node.lc.data.get(key) if hasattr(node, "lc") else None
                line = places[2] + 1 if places else 1
                for text in value if isinstance(value, list) else [value]:
                    if isinstance(text, str):
                        yield ShellText(path, _first_line(text, lines, line), text.replace("$$", "$"), shell)
            else:
                yield from _walk(path, value, lines, shells)
    elif isinstance(node, list):
        for item in node:
            yield from _walk(path, item, lines, shells)


def _first_line(text: str, lines: list[str], near: int) -> int:
    """The line of the file on which a block scalar's text begins."""
    first = next((line.strip() for line in text.split("\n") if line.strip()), "")
    skipped = next((n for n, line in enumerate(text.split("\n")) if line.strip()), 0)
    for number in range(near, min(near + 40, len(lines)) + 1):
        if first and first in lines[number - 1]:
            return number - skipped
    return near


_RUN = re.compile(r"^\s*RUN\s+(?:--\S+\s+)*", re.IGNORECASE)


def _of_dockerfile(path: str, text: str) -> Iterator[ShellText]:
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        head = _RUN.match(lines[number])
        start = number
        if head and not lines[number][head.end() :].startswith(("[", "<<")):
            taken = [" " * head.end() + lines[number][head.end() :]]
            while taken[-1].rstrip().endswith("\\") or (len(taken) > 1 and lines[number].lstrip().startswith("#")):
                number += 1
                if number >= len(lines):
                    break
                # A comment line inside a continued RUN is dropped by the builder.
                taken.append(" \\" if lines[number].lstrip().startswith("#") else lines[number])
            yield ShellText(path, start + 1, "\n".join(taken).strip(" "))
        number += 1
