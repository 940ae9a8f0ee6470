"""A description to a pipeline, pure, and a command's text back to its arguments."""

from __future__ import annotations

import io
import shlex
from pathlib import Path
from typing import Any

from synctool.ci.model import Description, Step
from synctool.errors import ConfigError

GPU_BLOCK = "gpu-gate"
#: Runs before each step's commands, in the same shell. The soft limit of open files is often 1024, which Ray and a queue of many files exceed;
#: the word ``hard`` needs no dollar sign, which Buildkite would interpolate.
PREAMBLE = ("ulimit -S -n hard", "ulimit -S -n")
#: -1: the agent was lost. Nothing else is tried again: a failing test stays red.
RETRY = {"automatic": [{"exit_status": -1, "limit": 1}], "manual": {"permit_on_passed": False}}

HEAD = "# Written by `vime-sync ci generate` from {source}; edit that file.\n"


def quote(arguments: tuple[str, ...]) -> str:
    """The shell command of an argument list. Dollar signs are doubled, as Buildkite's interpolation wants them."""
    return shlex.join(arguments).replace("$", "$$")


def unquote(command: str) -> tuple[str, ...]:
    """The arguments of such a command.

    Raises:
        ConfigError: quotes do not close.
    """
    try:
        return tuple(shlex.split(command.replace("$$", "$")))
    except ValueError as error:
        raise ConfigError(f"the shell cannot read this command: {error}", where=command) from error


def is_current(target: Path, text: str) -> bool:
    """Whether the written pipeline is ``text``, to the byte."""
    return target.is_file() and target.read_bytes() == text.encode()


def pipeline(description: Description) -> dict[str, Any]:
    """The pipeline as JSON values, checked against Buildkite's own schema.

    Raises:
        ConfigError: a command does not come back as it went in, or Buildkite's schema refuses a step.
    """
    plain = [_step(step) for step in description.steps if not step.gpus]
    gpu = [_step(step) for step in description.steps if step.gpus]
    gate = [{"block": description.gpu_block, "key": GPU_BLOCK, "blocked_state": "passed"}] if gpu else []
    value = {"env": dict(description.env), "steps": [*plain, *gate, *gpu]}
    validate(value)
    return value


def validate(value: dict[str, Any]) -> None:
    """Ask Buildkite's own JSON schema, as its SDK ships it. Its Python models are no check: they let unknown types through.

    Raises:
        ConfigError: the schema refuses the pipeline.
    """
    import json
    from importlib.resources import files

    from jsonschema import Draft7Validator
    from jsonschema.exceptions import best_match

    schema = json.loads(files("buildkite_sdk").joinpath("schema.json").read_text(encoding="utf-8"))
    error = best_match(Draft7Validator(schema).iter_errors(value))
    if error is not None:
        place = ".".join(str(part) for part in error.absolute_path)
        raise ConfigError(f"Buildkite's schema refuses {place or 'the pipeline'}: {error.message[:200]}")


def render(value: dict[str, Any], source: str) -> str:
    """YAML with the line that says where it comes from."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.width = 10_000
    yaml.representer.ignore_aliases = lambda _: True
    out = io.StringIO()
    yaml.dump(value, out)
    return HEAD.format(source=source) + out.getvalue()


def _step(step: Step) -> dict[str, Any]:
    commands = []
    for arguments in step.run:
        text = quote(arguments)
        if unquote(text) != arguments:
            raise ConfigError(f"step {step.key!r}: {arguments} would reach the shell as {unquote(text)}")
        commands.append(text)
    waits = [*step.depends_on, *([GPU_BLOCK] if step.gpus else [])]
    value: dict[str, Any] = {"label": step.label, "key": step.key, "commands": [*PREAMBLE, *commands]}
    if step.condition:
        value["if"] = step.condition
    if waits:
        value["depends_on"] = waits
    if step.gpus:
        value["agents"] = {"gpus": str(step.gpus)}
    value["timeout_in_minutes"] = step.minutes
    if step.artifacts:
        value["artifact_paths"] = list(step.artifacts)
    return value | {"retry": RETRY}
