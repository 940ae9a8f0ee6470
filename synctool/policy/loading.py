"""Loads ``vime-sync.toml``. Each mistake becomes one line: what is wrong, file and line, and the fix."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from synctool.errors import ConfigError
from synctool.policy.model import Policy, Rule
from synctool.policy.toml_lines import LineIndex, Location
from synctool.textfile import read_text

POLICY_FILE = "vime-sync.toml"


def find_policy(work_tree: Path | None, given: Path | None = None) -> Path:
    """The policy file: the one given, else ``vime-sync.toml`` at the root of the work tree.

    Raises:
        ConfigError: there is none.
    """
    path = given or (work_tree or Path()) / POLICY_FILE
    if not os.path.lexists(path):
        raise ConfigError(
            "no policy file",
            where=str(path),
            hint="write one with 'vime-sync init --baseline SHA', or name one with --policy FILE",
        )
    return path


def load_policy(path: Path) -> Policy:
    """Read and check a policy file.

    Raises:
        ConfigError: it can't be read, is no TOML, or breaks the schema; ``where`` is file:line.
    """
    return parse_policy(read_text(path, "policy"), _shown(path))


def _shown(path: Path) -> str:
    """The path as messages name it: from the current folder when it lies below."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def parse_policy(text: str, file: str = POLICY_FILE) -> Policy:
    """A policy from TOML text; ``file`` is used in messages.

    Raises:
        ConfigError: as ``load_policy``.
    """
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\s*\(at line (\d+), column \d+\)|\s*\(at end of document\)", str(error))
        line = found.group(1) if found and found.group(1) else text.count("\n") + 1
        title = str(error)[: found.start()] if found else str(error)
        raise ConfigError(
            f"not valid TOML: {title}", where=f"{file}:{line}", hint="regexes are easiest in '''literal strings'''"
        ) from None
    index = LineIndex(text.replace("\r\n", "\n"))
    try:
        policy = Policy.model_validate(raw)
    except ValidationError as error:
        raise _explain(error, index, file) from None
    policy._file = file
    _set_lines(policy, index)
    return policy


def _set_lines(policy: Policy, index: LineIndex) -> None:
    for name, field in Policy.model_fields.items():
        key = field.alias or name
        value = getattr(policy, name)
        if isinstance(value, Rule):
            value._line = index.line((key,))
        elif isinstance(value, tuple):
            for number, rule in enumerate(value):
                rule._line = index.line((key, number))


def _explain(error: ValidationError, index: LineIndex, file: str) -> ConfigError:
    """The first mistake in the file in full, the others one line each in the hint."""
    told = sorted(_one(details, index) for details in error.errors(include_url=False))
    (line, title, hint), *others = told
    for other_line, other_title, _ in others[:9]:
        hint += f"\n  also {file}:{other_line}: {other_title}"
    if len(others) > 9:
        hint += f"\n  and {len(others) - 9} more"
    return ConfigError(title, where=f"{file}:{line}", hint=hint)


def _one(details: Any, index: LineIndex) -> tuple[int, str, str]:
    """Line, title and fix of one pydantic error."""
    location: Location = tuple(details["loc"])
    kind, context, given = details["type"], details.get("ctx", {}), details["input"]
    name = _name(location)
    line = index.line(location)
    if kind == "missing":
        return line, f"{_name(location[:-1])} needs '{location[-1]}'", f"add {_example(location)}"
    if kind == "extra_forbidden":
        known = _known_keys(location[:-1])
        near = difflib.get_close_matches(str(location[-1]), known, n=1)
        fix = f"did you mean '{near[0]}'?" if near else f"known keys: {', '.join(known)}"
        return line, f"{_name(location[:-1])} has an unknown key '{location[-1]}'", fix
    if kind in ("literal_error", "enum"):
        return line, f"{name} can't be {given!r}", f"use {context['expected']}"
    if kind in ("glob", "policy"):
        return line, f"{name}: {details['msg']}" if location else details["msg"], context["hint"]
    if kind == "string_pattern_mismatch":
        return line, f"{name} is not a commit id: {given!r}", "give 7 to 64 lower-case hexadecimal digits"
    if kind == "string_too_short":
        return line, f"{name} is too short: {given!r}", f"write at least {context['min_length']} character(s)"
    if kind == "too_short":
        return line, f"{name} is empty", "name at least one, or remove the rule"
    if kind in ("model_type", "tuple_type", "dict_type"):
        wanted = {"model_type": "a table", "tuple_type": "a list", "dict_type": "a table of texts"}[kind]
        shape = (
            f"write it as [{location[0]}]" if kind == "model_type" and len(location) == 1 else f"write it as {wanted}"
        )
        if kind == "tuple_type" and location[-1] in _ARRAY_TABLES and len(location) == 1:
            shape = f"write each rule as [[{location[0]}]]"
        return line, f"{name} must be {wanted}", shape
    return line, f"{name}: {details['msg'][0].lower()}{details['msg'][1:]}", f"it is {given!r} now"


def _name(location: Location) -> str:
    """``[[owner]] 2 paths 1`` as people count: rules from 1."""
    if not location:
        return "the policy"
    head, *rest = location
    words = [f"[[{head}]]" if head in _ARRAY_TABLES else f"[{head}]" if rest else f"'{head}'"]
    words += [f"#{part + 1}" if isinstance(part, int) else str(part) for part in rest]
    return " ".join(words)


def _example(location: Location) -> str:
    """What to write where a key is missing."""
    table, key = location[0], str(location[-1])
    if len(location) == 1:
        return "'schema = 1' as the first line" if key == "schema" else f"a [{key}] table"
    if key == "owner":
        return "owner = 'mirror', 'native', 'exclude' or 'port'" if table == "owner" else "owner = 'who answers for it'"
    return "reason = 'why, for whoever asks later'" if key == "reason" else f"{key} = ..."


_ARRAY_TABLES = {
    field.alias: field.annotation.__args__[0]  # type: ignore[union-attr]
    for field in Policy.model_fields.values()
    if field.alias and field.alias != "schema"
}


def _known_keys(location: Location) -> list[str]:
    """The keys that a table may have."""
    model: type[BaseModel] = Policy
    if location:
        field = next(f for n, f in Policy.model_fields.items() if (f.alias or n) == location[0])
        found = _ARRAY_TABLES.get(str(location[0]), field.annotation)
        model = found if isinstance(found, type) else Policy
    return [field.alias or name for name, field in model.model_fields.items()]
