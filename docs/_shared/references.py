"""References generated from the code that they describe. A page asks for one with the line ``<!-- generated: NAME -->``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import click

_MARK = re.compile(r"^<!-- generated: ([a-z-]+) -->$", re.MULTILINE)


def fill(text: str) -> str:
    """A page's text with its generated parts. An unknown name is an error, so that a misspelt one can't leave a hole."""
    return _MARK.sub(lambda match: GENERATED[match[1]](), text)


def verbs() -> str:
    """Every verb of ``vime-sync``, also those of groups, from click."""
    from synctool.cli.app import cli

    return "\n".join(line for path, command in walk(cli, ("vime-sync",)) for line in _verb(path, command))


def walk(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command below a group, in the order of its help."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield (*path, name), below
            yield from walk(below, (*path, name))


def _verb(path: tuple[str, ...], command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=" ".join(path))
    usage = " ".join(command.collect_usage_pieces(context))
    yield from ["", f"{'#' * len(path)} {' '.join(path)}", "", "```text", f"{' '.join(path)} {usage}", "```", ""]
    yield _prose(command.help or "")
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    if options and not isinstance(command, click.Group):
        yield from ["", "| Option | Meaning |", "|---|---|"]
        for option in options:
            record = option.get_help_record(context)
            if record is not None:
                yield f"| `{_cell(record[0])}` | {_prose(_cell(record[1]))} |"


def policy() -> str:
    """Every table and key of ``vime-sync.toml``, from the schema that loading checks it by."""
    from synctool.policy.model import json_schema

    schema = json_schema()
    lines = _keys("The top of the file", schema, schema, tables=False)
    for name, value in schema["properties"].items():
        target = _reference(value) or _reference(value.get("items", {}))
        if target is not None:
            described = schema["$defs"][target]
            title = f"`[[{name}]]`" if value.get("type") == "array" else f"`[{name}]`"
            lines += _keys(title, described, schema)
    return "\n".join(lines)


def _keys(title: str, table: dict[str, Any], schema: dict[str, Any], *, tables: bool = True) -> list[str]:
    lines = [
        "",
        f"## {title}",
        "",
        _prose(table.get("description", "")),
        "",
        "| Key | Takes | Default | Meaning |",
        "|---|---|---|---|",
    ]
    required = table.get("required", [])
    for name, value in table.get("properties", {}).items():
        if not tables and (_reference(value) or _reference(value.get("items", {}))):
            continue
        default = "required" if name in required else f"`{value['default']!r}`" if value.get("default") else ""
        lines.append(
            f"| `{name}` | {_cell(_takes(value, schema))} | {_cell(default)} | {_prose(_cell(value.get('description', '')))} |"
        )
    return lines


def _reference(value: dict[str, Any]) -> str | None:
    found = value.get("$ref") or next((one["$ref"] for one in value.get("allOf", []) if "$ref" in one), None)
    return str(found).rpartition("/")[2] if found else None


def _takes(value: dict[str, Any], schema: dict[str, Any]) -> str:
    target = _reference(value)
    if target is not None:
        return _takes(schema["$defs"][target], schema)
    if "enum" in value:
        return ", ".join(f"`{one}`" for one in value["enum"])
    if "const" in value:
        return f"`{value['const']}`"
    if "anyOf" in value:
        return " or ".join(_takes(one, schema) for one in value["anyOf"] if one.get("type") != "null")
    if value.get("type") == "array":
        return f"list of {_takes(value.get('items', {}), schema)}"
    names = {"string": "text", "integer": "whole number", "boolean": "`true` or `false`", "object": "table"}
    return names.get(str(value.get("type")), str(value.get("type", "anything")))


def manifest() -> str:
    """Every table and key of a manifest, from the tables that reading checks it by."""
    from synctool.plan.manifest import REQUIRED, TABLES, TOP

    lines: list[str] = []
    for name, keys in {"": TOP, **TABLES}.items():
        lines += [
            "",
            f"### `[[{name}]]`" if name else "### The top of the file",
            "",
            "| Key | Takes | Required |",
            "|---|---|---|",
        ]
        lines += [f"| `{key}` | {takes} | {'yes' if key in REQUIRED[name] else ''} |" for key, takes in keys.items()]
    return "\n".join(lines)


def exit_codes() -> str:
    """Both programs' exit codes, from their errors."""
    from synctool.cli.app import EXIT_HELP
    from vime import errors as runtime

    lines = ["| Code | `vime-sync` |", "|---|---|"]
    lines += [f"| {code} | {_cell(text)} |" for code, text in re.findall(r"(\d+) ([^;.]+)", EXIT_HELP)]
    lines += ["", "| Code | `vime` and `train.py` |", "|---|---|"]
    for code, kind in sorted(
        {(kind.exit_code, kind) for kind in _kinds(runtime.VimeError)}, key=lambda one: (one[0], one[1].__name__)
    ):
        lines.append(f"| {code} | `{kind.__name__}`: {_cell((kind.__doc__ or '').split(chr(10), 1)[0])} |")
    return "\n".join(lines)


def _kinds(kind: type[Any]) -> Iterator[type[Any]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _kinds(below)


def arguments() -> str:
    """Every option of ``train.py``."""
    from vime.arguments.help import reference_page

    page = reference_page()
    return page[page.index("\n## ") :]


def hooks() -> str:
    """Every option that takes a function of the user, and how it is called."""
    from vime.hooks import SPECS

    lines = ["| Option | Called as | What it does |", "|---|---|---|"]
    for name, spec in SPECS.items():
        calls = " or ".join(f"`{call.text('fn')}`" for call in spec.calls)
        kind = {True: "async ", False: "", None: "async or not: "}[spec.asynchronous]
        methods = f"; a class with {', '.join(f'`{method}`' for method in spec.methods)}" if spec.methods else ""
        purpose = _prose(_cell(" ".join((spec.protocols[0].__doc__ or "").split())))
        lines.append(f"| `--{name.replace('_', '-')}` | {kind}{calls}{methods} | {purpose} |")
    return "\n".join(lines)


def transports() -> str:
    """The media of a weight update that are built."""
    from vime.transport.sender import SENDERS

    return ", ".join(f"`{name}`" for name in SENDERS)


def engine_flags() -> str:
    """slime's engine flags and ours."""
    from vime.migrate.names import OTHER_FLAGS, SGLANG_FLAGS

    return "\n".join(
        [
            "| slime | vime |",
            "|---|---|",
            *(f"| `{old}` | {_flag(rule.text())} |" for old, rule in (SGLANG_FLAGS | OTHER_FLAGS).items()),
        ]
    )


def troubles(language: str) -> str:
    """Public reports, and the tests that answer them, from ``troubles.toml`` beside this file."""
    import tomllib
    from pathlib import Path

    heads = {"en": ("Report", "Trouble", "Held by"), "zh": ("报告", "问题", "由谁保证")}[language]
    lines = [f"| # | {' | '.join(heads)} |", "|---|---|---|---|"]
    for one in tomllib.loads((Path(__file__).parent / "troubles.toml").read_text(encoding="utf-8"))["trouble"]:
        held = "; ".join(
            [*([one[f"note_{language}"]] if one[f"note_{language}"] else []), *(f"`{test}`" for test in one["tests"])]
        )
        lines.append(f"| {one['number']} | {_cell(one['source'])} | {_cell(one[language])} | {_cell(held)} |")
    return "\n".join(lines)


def algorithms(language: str) -> str:
    """The trainer's formulas, what each is held against, and how far the tests found it from that."""
    import json
    import tomllib
    from pathlib import Path

    here = Path(__file__)
    known = tomllib.loads((here.parent / "algorithms.toml").read_text(encoding="utf-8"))
    measured = json.loads((here.parents[2] / "benchmarks/results/algorithms.json").read_text(encoding="utf-8"))
    heads = {
        "en": ("Formula", "Held against", "Largest difference", "By"),
        "zh": ("公式", "对照", "最大差", "测试"),
    }[language]
    lines = [f"| # | {' | '.join(heads)} |", "|---|---|---|---|---|"]
    for one in known["algorithm"]:
        names = known["figures"] if language == "zh" else {}
        figures = "; ".join(f"{names.get(name, name)}: {value:g}" for name, value in measured[one["id"]].items())
        tests = "; ".join(f"`{test.rpartition('/')[2]}`" for test in one["tests"])
        cells = (one["id"], one[language], one[f"against_{language}"], figures, tests)
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    return "\n".join(lines)


def _flag(text: str) -> str:
    return _cell(re.sub(r"(--[\w-]+)", r"`\1`", text))


def patches() -> str:
    """The patches of the stack in this repository, from their headers."""
    from pathlib import Path

    folder = Path(__file__).resolve().parents[2] / "patches/vllm/0.32.0"
    lines = ["| Patch | What it brings | State upstream |", "|---|---|---|"]
    for name in (folder / "series").read_text(encoding="utf-8").splitlines():
        if name and not name.startswith("#"):
            header = (folder / name).read_text(encoding="utf-8").split("\n---", 1)[0]
            fields = dict(re.findall(r"^([A-Z][\w-]+): (.*)$", header, re.MULTILINE))
            lines.append(f"| `{name}` | {_cell(fields['Description'])} | {_cell(fields.get('Upstream-Status', ''))} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _prose(text: str) -> str:
    """Help text as Markdown: what would be markup in it stays text."""
    return re.sub(r"(?<!\\)([<>\[\]*_`#{}$])", r"\\\1", text.replace("\b", ""))


GENERATED: dict[str, Callable[[], str]] = {
    "verbs": verbs,
    "policy": policy,
    "manifest": manifest,
    "exit-codes": exit_codes,
    "arguments": arguments,
    "hooks": hooks,
    "transports": transports,
    "engine-flags": engine_flags,
    "patches": patches,
    "algorithms-en": lambda: algorithms("en"),
    "algorithms-zh": lambda: algorithms("zh"),
    "troubles-en": lambda: troubles("en"),
    "troubles-zh": lambda: troubles("zh"),
}
