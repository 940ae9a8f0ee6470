"""One option: its flag, kind, default and help. Everything that is shown, parsed or checked about it is derived from this value."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any

from vime.errors import UsageError


class Kind(Enum):
    SWITCH = "switch"
    INT = "int"
    FLOAT = "float"
    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True)
class Option:
    """`many`: one or more values after the flag. `repeat`: the flag may be given again and adds a value. `stores`: what a switch sets."""

    flag: str
    kind: Kind = Kind.TEXT
    default: Any = None
    help: str = ""
    choices: tuple[str, ...] = ()
    many: bool = False
    repeat: bool = False
    dest: str = ""
    stores: bool = True
    aliases: tuple[str, ...] = ()
    #: How the default reads in help, where the value is computed from other options.
    default_text: str = ""

    @property
    def name(self) -> str:
        """The attribute of the namespace."""
        return self.dest or self.flag.lstrip("-").replace("-", "_")

    @property
    def negation(self) -> str | None:
        """The flag that turns a switch off again, for switches that a configuration file may have turned on."""
        bare = self.flag.removeprefix("--")
        if self.kind is not Kind.SWITCH or not self.stores or bare.startswith(("no-", "disable-")):
            return None
        # vLLM's own flag is --no-x, so the re-exported one is --vllm-no-x.
        return f"--vllm-no-{bare.removeprefix('vllm-')}" if bare.startswith("vllm-") else f"--no-{bare}"

    @property
    def shown_default(self) -> str:
        if self.default_text:
            return self.default_text
        if (
            self.default is None
            or self.default == []
            or (self.kind is Kind.SWITCH and self.default is (not self.stores))
        ):
            return ""
        return self.default if isinstance(self.default, str) else json.dumps(self.default)

    def from_text(self, text: str) -> Any:
        """One value from the command line. Raises UsageError."""
        try:
            value = self._convert(text)
        except ValueError as error:
            raise UsageError(f"{self.flag}: {text!r} is not {_ARTICLE[self.kind]}") from error
        return self._chosen(value)

    def from_value(self, value: Any, where: str) -> Any:
        """The value of a configuration file (TOML or YAML types). Raises UsageError naming `where`."""
        if value is None:
            return None
        if self.many or self.repeat:
            values = value if isinstance(value, list | tuple) else [value]
            return [self._one(item, where) for item in values]
        return self._one(value, where)

    def _one(self, value: Any, where: str) -> Any:
        wrong = UsageError(f"{self.name} is {value!r}, which is not {_ARTICLE[self.kind]}", where=where)
        match self.kind:
            case Kind.SWITCH:
                if not isinstance(value, bool):
                    raise wrong
                return value
            case Kind.JSON:
                return value if not isinstance(value, str) else self.from_text(value)
            case Kind.TEXT:
                if isinstance(value, dict | list):
                    raise wrong
                return self._chosen(value if isinstance(value, str) else str(value))
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise wrong
        try:
            return self._chosen(self._convert(value if isinstance(value, str) else repr(value)))
        except ValueError as error:
            raise wrong from error

    def _convert(self, text: str) -> Any:
        match self.kind:
            case Kind.INT:
                return whole_number(text)
            case Kind.FLOAT:
                return float(text)
            case Kind.JSON:
                return json.loads(text)
        return text

    def _chosen(self, value: Any) -> Any:
        if self.choices and value not in self.choices:
            raise UsageError(f"{self.flag}: {value!r} is none of {', '.join(self.choices)}")
        return value


_ARTICLE = {
    Kind.SWITCH: "true or false",
    Kind.INT: "a whole number",
    Kind.FLOAT: "a number",
    Kind.TEXT: "a text",
    Kind.JSON: "JSON",
}

_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def whole_number(text: str) -> int:
    """'4096', '4k' (4000), '4K' (4096): vLLM's shorthand. Raises ValueError."""
    if text and text[-1] in _SUFFIXES:
        scaled = float(text[:-1]) * _SUFFIXES[text[-1]]
        if scaled != int(scaled):
            raise ValueError(text)
        return int(scaled)
    return int(text)


def switch(
    flag: str, help: str, *, default: bool | None = False, dest: str = "", stores: bool = True, default_text: str = ""
) -> Option:
    return Option(flag, Kind.SWITCH, default, help, dest=dest, stores=stores, default_text=default_text)


def integer(flag: str, default: int | None, help: str, **more: Any) -> Option:
    return Option(flag, Kind.INT, default, help, **more)


def number(flag: str, default: float | None, help: str, **more: Any) -> Option:
    return Option(flag, Kind.FLOAT, default, help, **more)


def text(flag: str, default: str | None, help: str, **more: Any) -> Option:
    return Option(flag, Kind.TEXT, default, help, **more)


def mapping(flag: str, default: dict[str, Any] | None, help: str, **more: Any) -> Option:
    return Option(flag, Kind.JSON, default, help, **more)


def choice(flag: str, default: str | None, choices: tuple[str, ...], help: str, **more: Any) -> Option:
    return Option(flag, Kind.TEXT, default, help, choices=choices, **more)
