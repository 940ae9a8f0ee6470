"""From a command line to a complete namespace: defaults, configuration file, flags, custom attributes, derived values, cross checks."""

from __future__ import annotations

import argparse
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import Any, NoReturn

from vime.arguments import catalogue
from vime.arguments.checks import check
from vime.arguments.config_file import read_config, read_custom_config
from vime.arguments.derive import derive
from vime.arguments.help import help_text
from vime.arguments.option import Kind, Option
from vime.errors import Problems, UsageError


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    """The resolved arguments. Every option is an attribute; ``args.given`` holds the names that the user set.

    Later sources win: defaults, ``--config``, the command line, ``--custom-config-path``. Raises UsageError; unknown flags and failed cross
    checks are reported all at once. ``--help [vime|megatron|vllm|all]`` prints and raises SystemExit(0).
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if (topic := _help_topic(argv)) is not None:
        print(help_text(topic))
        raise SystemExit(0)
    flags = read_flags(argv)
    config = read_config(flags["config"]) if flags.get("config") else {}
    given = config | flags
    values = {option.name: _default(option) for option in catalogue.by_name().values()} | given
    args = Namespace(**values)
    if args.custom_config_path:
        custom = read_custom_config(args.custom_config_path)
        given |= custom
        for name, value in custom.items():
            setattr(args, name, value)
    args.given = frozenset(given)
    args = derive(args)
    problems = check(args)
    if problems:
        raise Problems(problems)
    return args


def read_flags(argv: Sequence[str]) -> dict[str, Any]:
    """Attribute -> value of the flags in `argv`, and nothing else. Raises UsageError; all unknown flags at once."""
    found, rest = _parser().parse_known_args(_join_negative_values(argv))
    unknown = [item.split("=", 1)[0] for item in rest if item.startswith("-") and not _is_number(item)]
    if unknown:
        raise Problems([catalogue.unknown_flag(flag) for flag in dict.fromkeys(unknown)])
    if rest:
        raise UsageError(
            f"{rest[0]!r} does not belong to any option", hint="switches take no value; lists end at the next option"
        )
    return vars(found)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message.removeprefix("argument "))


class _Convert(argparse.Action):
    """Converts through the option, so that a flag and a configuration file agree on every value."""

    def __init__(self, *, option: Option, **more: Any) -> None:
        super().__init__(**more)
        self.option = option

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Namespace, values: Any, flag: str | None = None
    ) -> None:
        if self.option.many:
            value: Any = [self.option.from_text(item) for item in values]
        else:
            value = self.option.from_text(values)
        if self.option.repeat:
            value = [*getattr(namespace, self.dest, []), value]
        setattr(namespace, self.dest, value)


def _parser() -> _Parser:
    parser = _Parser(prog="train.py", add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for option in catalogue.by_name().values():
        if option.kind is Kind.SWITCH:
            parser.add_argument(option.flag, dest=option.name, action="store_const", const=option.stores)
            if option.negation:
                parser.add_argument(option.negation, dest=option.name, action="store_const", const=not option.stores)
        else:
            nargs = "+" if option.many else None
            parser.add_argument(
                option.flag, *option.aliases, dest=option.name, action=_Convert, option=option, nargs=nargs
            )
    return parser


def _join_negative_values(argv: Sequence[str]) -> list[str]:
    """'--x -1e-3' as '--x=-1e-3': argparse takes a negative number with an exponent for a flag."""
    joined: list[str] = []
    for item in argv:
        if (
            joined
            and item.startswith("-")
            and "e" in item.lower()
            and _is_number(item)
            and joined[-1].startswith("--")
            and "=" not in joined[-1]
        ):
            joined[-1] += "=" + item
        else:
            joined.append(item)
    return joined


def _help_topic(argv: Sequence[str]) -> str | None:
    for position, item in enumerate(argv):
        if item in ("-h", "--help"):
            following = argv[position + 1] if position + 1 < len(argv) else "vime"
            return following if following in ("vime", "megatron", "vllm", "all") else "vime"
    return None


def _default(option: Option) -> Any:
    """Containers are copied: a run must not change the table."""
    value = option.default
    return value.copy() if isinstance(value, dict | list) else value


def _is_number(item: str) -> bool:
    try:
        float(item)
    except ValueError:
        return False
    return True
