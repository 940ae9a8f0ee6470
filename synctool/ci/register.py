"""Adds a test to a step: of our description, or of a pipeline that people write by hand. Everything else stays as it is, comments included."""

from __future__ import annotations

import io
import shlex
from typing import Any

from synctool.ci.generate import quote, unquote
from synctool.ci.model import covers
from synctool.errors import ConfigError, NothingToDo, UsageError


def in_description(text: str, step: str, test: str, where: str) -> str:
    """The description's text with ``test`` in a step's list.

    Raises:
        NothingToDo: a step names it already.
        UsageError: there is no such step.
    """
    import tomlkit

    document: Any = tomlkit.parse(text)
    for known in document.get("step", []):
        for entry in known.get("tests", []):
            if covers(str(entry), test):
                raise NothingToDo(f"step {known['key']!r} runs {test} already", where=where)
    for known in document.get("step", []):
        if known["key"] == step:
            known.setdefault("tests", []).append(test)
            return tomlkit.dumps(document)
    raise UsageError(f"no step has the key {step!r}", where=where)


def in_pipeline(text: str, step: str, arguments: tuple[str, ...], where: str) -> str:
    """A hand-written pipeline's text with one more command at the end of a step's ``commands`` (or ``command``).

    The step is found by key or label, also inside groups.

    Raises:
        NothingToDo: a step has that command already, whatever its quoting.
        UsageError: there is no such step.
        ConfigError: not a pipeline, or the step has no commands.
    """
    from ruamel.yaml import YAML, YAMLError

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 10_000
    sequences = [line for line in text.splitlines() if line.lstrip().startswith("- ")]
    offset = len(sequences[0]) - len(sequences[0].lstrip()) if sequences else 0
    yaml.indent(mapping=2, sequence=offset + 2, offset=offset)
    try:
        value = yaml.load(text)
    except YAMLError as error:
        raise ConfigError(f"not YAML: {str(error).splitlines()[0]}", where=where) from error
    steps = _flat(value)
    for known in steps:
        for command in _commands(known):
            if _same(command, arguments):
                raise NothingToDo(f"step {known.get('key') or known.get('label')!r} has it already", where=where)
    chosen = next((known for known in steps if step in (known.get("key"), known.get("label"))), None)
    if chosen is None:
        raise UsageError(f"no step has the key or label {step!r}", where=where)
    name = "commands" if "commands" in chosen else "command"
    if name not in chosen:
        raise ConfigError(f"step {step!r} has no commands", where=where)
    if isinstance(chosen[name], str):
        chosen[name] = [chosen[name]]
    chosen[name].append(quote(arguments))
    out = io.StringIO()
    yaml.dump(value, out)
    return out.getvalue()


def _flat(value: Any) -> list[Any]:
    steps = value.get("steps", []) if isinstance(value, dict) else value if isinstance(value, list) else []
    found = []
    for step in steps:
        if isinstance(step, dict):
            found.append(step)
            found += _flat(step) if "steps" in step else []
    return found


def _commands(step: Any) -> list[str]:
    given = step.get("commands", step.get("command", []))
    return [given] if isinstance(given, str) else [str(one) for one in given or []]


def _same(command: str, arguments: tuple[str, ...]) -> bool:
    for line in command.splitlines():
        try:
            if unquote(line) == arguments:
                return True
        except ConfigError:
            if shlex.join(arguments) in line:
                return True
    return False
