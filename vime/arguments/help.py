"""The help text and the reference page, rendered from the option tables."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

from vime.arguments import catalogue
from vime.arguments.option import Kind, Option
from vime.arguments.tables.section import Section

_TITLES = {"vime": "vime", "megatron": "Megatron", "vllm": "vLLM"}


def help_text(topic: str = "vime", width: int | None = None) -> str:
    """Options of one group, or of all ("all"), for a terminal."""
    width = width or min(shutil.get_terminal_size((120, 24)).columns, 140)
    lines = [
        "usage: train.py [--config FILE] [options]",
        "",
        "`train.py --help megatron`, `--help vllm` and `--help all` show the other options; `--dry-run` shows what would run.",
    ]
    for name, sections in catalogue.sections().items():
        if topic not in (name, "all"):
            continue
        if not sections:
            lines += ["", f"{_TITLES[name]} is not installed: its options cannot be listed."]
        for section in sections:
            lines += ["", section.title, *_terminal(section, width)]
    return "\n".join(lines)


def reference_page(topics: Sequence[str] = ("vime", "megatron", "vllm")) -> str:
    """All options as Markdown, for the documentation."""
    lines = [
        "# Options",
        "",
        "Generated from `vime/arguments/`. Keys of a `--config` file are the names without dashes in front.",
    ]
    for topic in topics:
        lines += ["", f"## {_TITLES[topic]}"]
        for section in catalogue.sections()[topic]:
            lines += ["", f"### {section.title}", "", "| Option | Takes | Default | Meaning |", "|---|---|---|---|"]
            lines += [
                f"| `{one.flag}` | {_cell(_takes(one))} | {_cell(one.shown_default)} | {_cell(one.help)} |"
                for one in section.options
            ]
    return "\n".join(lines) + "\n"


def _terminal(section: Section, width: int) -> list[str]:
    lines = []
    for option in section.options:
        head = f"  {option.flag} {_takes(option)}".rstrip()
        default = f" [{option.shown_default}]" if option.shown_default else ""
        body = textwrap.wrap((option.help + default).strip(), max(width - 48, 30)) or [""]
        if len(head) > 46:
            lines.append(head)
            head = ""
        lines.append(f"{head:<48}{body[0]}".rstrip())
        lines += [" " * 48 + line for line in body[1:]]
    return lines


def _takes(option: Option) -> str:
    if option.kind is Kind.SWITCH:
        return ""
    one = "|".join(option.choices) if option.choices else option.kind.name
    return f"{one} ..." if option.many else one


def _cell(content: str) -> str:
    return content.replace("|", "\\|").replace("\n", " ")
