"""All options by attribute name and by flag, and the nearest known flag to a misspelt one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType

from vime.arguments import megatron, tables, vllm
from vime.arguments.option import Option
from vime.arguments.tables.section import Section
from vime.errors import Problem
from vime.migrate.names import slime_hint


@lru_cache(maxsize=1)
def sections() -> Mapping[str, tuple[Section, ...]]:
    """The three groups, by the name that ``--help NAME`` takes. megatron-core's and vLLM's fields are there when they are installed."""
    core = Section("Further fields of megatron-core", tuple(option for option, _ in megatron.core_options().values()))
    engine = Section("Fields of the vLLM engine and server", tuple(vllm.engine_options().values()))
    return MappingProxyType(
        {
            "vime": tables.SECTIONS,
            "megatron": (*megatron.SECTIONS, *((core,) if core.options else ())),
            "vllm": (engine,) if engine.options else (),
        }
    )


@lru_cache(maxsize=1)
def by_name() -> Mapping[str, Option]:
    """Namespace attribute -> option."""
    return MappingProxyType({option.name: option for option in _all()})


@lru_cache(maxsize=1)
def by_flag() -> Mapping[str, Option]:
    """Flag, alias or negation -> option."""
    flags: dict[str, Option] = {}
    for option in _all():
        for flag in (option.flag, *option.aliases, *([option.negation] if option.negation else ())):
            flags[flag] = option
    return MappingProxyType(flags)


def unknown_flag(flag: str) -> Problem:
    """What to say about a flag that does not exist."""
    if (hint := slime_hint(flag)) is not None:
        return Problem(f"{flag} belongs to slime", hint)
    if flag.startswith(vllm.PREFIX):
        field = flag.removeprefix(vllm.PREFIX).removeprefix("no-").replace("-", "_")
        if field in vllm.OWNED:
            return Problem(f"{flag} is set by vime", f"set {vllm.OWNED[field]}")
        if not vllm.engine_options():
            return Problem(
                f"{flag} cannot be checked because vLLM is not installed", "install it, or leave --vllm-* options out"
            )
    near = nearest(flag, by_flag())
    what = "is no field of the installed vLLM" if flag.startswith(vllm.PREFIX) else "is not an option"
    return Problem(f"{flag} {what}", f"did you mean {near}?" if near else "`train.py --help all` lists every option")


def unknown_key(key: str) -> Problem:
    """The same for a key of a configuration file."""
    near = nearest(key.replace("-", "_"), by_name())
    return Problem(
        f"{key} is not an option", f"did you mean {near}?" if near else "`train.py --help all` lists every option"
    )


def nearest(word: str, known: Iterable[str]) -> str | None:
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def _all() -> list[Option]:
    return [option for group in sections().values() for section in group for option in section.options]
