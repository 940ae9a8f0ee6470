"""Options from a TOML or YAML file.

Keys are option names, with ``_`` or ``-``. Tables group them as the writer likes; inside ``[vllm]`` the prefix ``vllm_`` is implied.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from vime.arguments import catalogue
from vime.errors import Problem, Problems, UsageError


def read_config(path: str) -> dict[str, Any]:
    """Attribute -> value of the options in the file. Raises UsageError naming file and line; all unknown keys at once."""
    source = _read(path)
    tree = _parse(path, source)
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for key, value in _flatten(tree, ""):
        option = catalogue.by_name().get(key)
        where = f"{path}:{_line(source, key)}"
        if option is None:
            unknown = catalogue.unknown_key(key)
            problems.append(Problem(f"{where}: {unknown.title}", unknown.hint))
            continue
        try:
            values[key] = option.from_value(value, where)
        except UsageError as error:
            problems.append(Problem(str(error), error.hint))
    if problems:
        raise Problems(problems, where=path)
    return values


def read_custom_config(path: str) -> dict[str, Any]:
    """Attributes of ``--custom-config-path``. Names of options are checked as such, near misses of them are refused, others are the user's own."""
    source = _read(path)
    values: dict[str, Any] = {}
    for raw, value in _parse(path, source).items():
        key, where = str(raw).replace("-", "_"), f"{path}:{_line(source, str(raw))}"
        option = catalogue.by_name().get(key)
        if option is None:
            near = catalogue.nearest(key, catalogue.by_name())
            if near is not None and _distance_is_one(key, near):
                raise UsageError(
                    f"{key} is one letter from the option {near}",
                    where=where,
                    hint="correct it, or give your own key another name",
                )
        values[key] = option.from_value(value, where) if option else value
    return values


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the configuration file cannot be read: {error}", where=path) from error


def _parse(path: str, source: str) -> dict[str, Any]:
    try:
        if path.endswith(".toml"):
            tree: Any = tomllib.loads(source)
        else:
            import yaml

            try:
                tree = yaml.safe_load(source)
            except yaml.YAMLError as error:
                mark = getattr(error, "problem_mark", None)
                raise UsageError(
                    f"not YAML: {getattr(error, 'problem', error)}", where=f"{path}:{mark.line + 1 if mark else 1}"
                ) from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"not TOML: {error}", where=path) from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise UsageError("the file must hold a mapping of option names to values", where=path)
    return tree


def _flatten(tree: dict[str, Any], prefix: str) -> list[tuple[str, Any]]:
    """Tables that are not themselves the value of an option are groups."""
    flat: list[tuple[str, Any]] = []
    for raw, value in tree.items():
        key = prefix + str(raw).replace("-", "_")
        if isinstance(value, dict) and key not in catalogue.by_name():
            flat += _flatten(value, "vllm_" if raw == "vllm" else prefix)
        else:
            flat.append((key, value))
    return flat


def _line(source: str, key: str) -> int:
    """The first line that sets `key`; 1 when it cannot be told."""
    bare = re.escape(key.removeprefix("vllm_")).replace("_", "[-_]")
    for number, line in enumerate(source.splitlines(), 1):
        if re.match(rf"\s*[\"']?(?:vllm[-_])?{bare}[\"']?\s*[:=]", line) or re.search(
            rf"{{[^}}]*\b{bare}\b\s*[:=]", line
        ):
            return number
    return 1


def _distance_is_one(one: str, other: str) -> bool:
    """One letter inserted, deleted, changed, or two neighbours swapped."""
    if abs(len(one) - len(other)) > 1:
        return False
    start = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    tail_one, tail_other = one[start:], other[start:]
    swapped = len(tail_one) > 1 and tail_one[1::-1] + tail_one[2:] == tail_other
    return swapped or tail_one[1:] == tail_other or tail_one == tail_other[1:] or tail_one[1:] == tail_other[1:]
