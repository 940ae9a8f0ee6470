"""The description of a pipeline: ``.buildkite/steps.toml``. Commands are lists of arguments; nobody quotes by hand."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from synctool.errors import ConfigError
from synctool.textfile import read_text

Key = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]*$")]
Argument = Annotated[str, StringConstraints(pattern=r"^[^\x00\r\n]+$")]
Command = Annotated[tuple[Argument, ...], Field(min_length=1)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Step(_Part):
    """One step. ``tests``: test files or folders that its commands run. ``gpus`` above 0 puts it behind the block step."""

    key: Key
    label: str = Field(min_length=1)
    run: tuple[Command, ...] = Field(min_length=1)
    minutes: int = Field(gt=0, le=24 * 60)
    depends_on: tuple[Key, ...] = ()
    condition: str = ""
    artifacts: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    gpus: int = Field(default=0, ge=0)


class Description(_Part):
    """The whole pipeline."""

    schema_: Literal[1] = Field(alias="schema")
    #: Variables of every step.
    env: dict[str, str] = {}
    #: Words on the block step that GPU suites wait behind.
    gpu_block: str = "Run the GPU suites?"
    #: Folders below which every test_*.py must belong to exactly one step.
    test_roots: tuple[str, ...] = ("tests",)
    steps: tuple[Step, ...] = Field(alias="step", min_length=1)

    @model_validator(mode="after")
    def _keys(self) -> Description:
        keys = [step.key for step in self.steps]
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(f"two steps have the key {key!r}")
        for step in self.steps:
            for wanted in step.depends_on:
                if wanted not in keys:
                    raise ValueError(f"step {step.key!r} depends on {wanted!r}, which is no step")
        return self


def covers(entry: str, test: str) -> bool:
    """Whether a step that lists ``entry``, a test file or a folder, runs ``test``."""
    return test == entry or test.startswith(entry.rstrip("/") + "/")


def load(path: Path) -> Description:
    """Read a description.

    Raises:
        ConfigError: missing, not TOML, or a field is wrong; ``where`` names the file.
    """
    try:
        return Description.model_validate(tomllib.loads(read_text(path, "description of the pipeline")))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not TOML: {error}", where=str(path)) from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{place}: {first['msg']}" if place else first["msg"], where=str(path)) from error
