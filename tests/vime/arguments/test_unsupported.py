"""No option is ignored in silence: it is read somewhere, refused, or told to have no effect."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

from vime.arguments import catalogue, megatron, tables
from vime.arguments.option import Kind
from vime.arguments.plan import describe, resolve_plan
from vime.arguments.unsupported import UNSUPPORTED, WITHOUT_EFFECT, notes, unsupported

Make = Callable[..., Namespace]
ROOT = Path(__file__).resolve().parents[3]
#: Where options are declared, so that their names there prove nothing.
DECLARED = ("vime/arguments/tables/", "vime/arguments/megatron.py", "vime/arguments/unsupported.py", "vime/migrate/")


def test_every_option_is_read_refused_or_told() -> None:
    files = [
        path
        for path in (*ROOT.glob("vime/**/*.py"), ROOT / "train.py")
        if not str(path.relative_to(ROOT)).startswith(DECLARED)
    ]
    source = "\n".join(path.read_text() for path in files)
    words = set(re.findall(r"\w+", source))
    # Names that are put together where they are read.
    parts = ("temperature", "top_p", "top_k", "max_response_len", "max_prompt_len", "max_context_len")
    built = {f"eval_{part}" for part in (*parts, "input_key", "label_key", "tool_key")}
    options = [option for section in (*tables.SECTIONS, *megatron.SECTIONS) for option in section.options]
    silent = [
        option.flag
        for option in options
        if option.name not in words | built | UNSUPPORTED.keys() | WITHOUT_EFFECT.keys()
    ]
    assert not silent


def test_the_tables_name_options_and_none_is_in_both() -> None:
    assert (UNSUPPORTED.keys() | WITHOUT_EFFECT.keys()) <= catalogue.by_name().keys()
    assert not UNSUPPORTED.keys() & WITHOUT_EFFECT.keys()


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_does_nothing_is_refused_with_its_reason(make_args: Make, name: str) -> None:
    args = make_args()
    assert not list(unsupported(args))
    option = catalogue.by_name()[name]
    setattr(args, name, True if option.kind is Kind.SWITCH else "other")
    (problem,) = unsupported(args)
    assert problem.title == f"{option.flag} is not supported"
    assert problem.hint == UNSUPPORTED[name]


def test_what_is_so_anyway_is_told(make_args: Make) -> None:
    args = make_args("--seq-length", "4096", "--attention-softmax-in-fp32")
    assert notes(args) == ["--seq-length: sequences are packed", "--attention-softmax-in-fp32: it always is"]
    assert "no effect      --seq-length: sequences are packed" in describe(resolve_plan(args))
    assert notes(make_args()) == []
