"""``--vllm-*``: every field of the installed vLLM's engine and server arguments.

A value of None means "not given": vLLM's own default holds. Values travel to the server as its command line (``engine_flags``), so vLLM itself
judges them.
"""

from __future__ import annotations

import json
import re
from argparse import Namespace
from functools import lru_cache
from typing import Any

from vime.arguments.dataclass_source import Field, package_file, read_fields
from vime.arguments.option import Kind, Option

PREFIX = "--vllm-"

#: Where each class lives; newer places first.
_SOURCES = (
    ("EngineArgs", ("engine/arg_utils.py",)),
    ("AsyncEngineArgs", ("engine/arg_utils.py",)),
    ("BaseFrontendArgs", ("entrypoints/launchers/cli_args.py", "entrypoints/openai/cli_args.py")),
    ("FrontendArgs", ("entrypoints/launchers/cli_args.py", "entrypoints/openai/cli_args.py")),
)

#: Fields that the runtime sets, and what a user sets instead.
OWNED = {
    "model": "--hf-checkpoint",
    "config": "--vllm-config",
    "trust_remote_code": "a checkpoint whose code is in transformers",
    "seed": "--seed",
    "tensor_parallel_size": "--rollout-num-gpus-per-engine",
    "nnodes": "--rollout-num-gpus-per-engine and --num-gpus-per-node",
    "node_rank": "nothing: it is computed",
    "master_addr": "nothing: it is computed",
    "master_port": "nothing: it is computed",
    "data_parallel_backend": "nothing: it is computed",
    "distributed_executor_backend": "nothing: it is computed",
    "host": "nothing: it is computed",
    "port": "nothing: it is computed",
    "enable_return_routed_experts": "--use-rollout-routing-replay",
    "logprobs_mode": "nothing: training needs processed log-probabilities",
    "weight_transfer_config": "--update-weight-transport",
}

#: Switches that vLLM's command line can only turn on.
_ONLY_ON = frozenset({"disable_log_stats"})


@lru_cache(maxsize=1)
def engine_options() -> dict[str, Option]:
    """Namespace attribute (``vllm_...``) -> option. Empty when vLLM is not installed."""
    options: dict[str, Option] = {}
    for class_name, places in _SOURCES:
        path = next((found for place in places if (found := package_file("vllm", place))), None)
        if path is None:
            continue
        try:
            fields = read_fields(path, class_name)
        except LookupError:
            continue
        for field in fields:
            if field.name not in OWNED:
                option = option_of(field, PREFIX, "vllm_", "vLLM's")
                options[option.name] = option
    return options


def engine_flags(args: Namespace, overrides: dict[str, Any] | None = None) -> list[str]:
    """The given ``vllm_*`` values, and `overrides` by field name above them, as arguments of a vLLM server."""
    given = {name.removeprefix("vllm_"): getattr(args, name) for name in engine_options()}
    given |= overrides or {}
    flags: list[str] = []
    for field, value in given.items():
        flag = "--" + field.replace("_", "-")
        match value:
            case None:
                continue
            case False if field in _ONLY_ON:
                continue
            case bool():
                flags.append(flag if value else flag.replace("--", "--no-", 1))
            case dict():
                flags += [flag, json.dumps(value)]
            case list() | tuple():
                flags += [flag, *map(str, value)]
            case _:
                flags += [flag, str(value)]
    return flags


def option_of(field: Field, flag_prefix: str, dest_prefix: str, default_text: str) -> Option:
    """An option for a field whose type is known only as source text. The default is None: the library's own."""
    flag = field.flags[0] if field.flags else flag_prefix + field.name.replace("_", "-")
    kind, many, choices = _kind(field.annotation)
    help = field.doc.split(". ")[0].rstrip(".")[:200]
    shown = (
        f"{default_text} {field.default}"
        if field.default not in (None, "None") and "(" not in str(field.default)
        else f"{default_text} own"
    )
    return Option(flag, kind, None, help, choices=choices, many=many, dest=dest_prefix + field.name, default_text=shown)


def _kind(annotation: str) -> tuple[Kind, bool, tuple[str, ...]]:
    parts = [part for part in _alternatives(annotation) if part not in ("None", "type", "object")]
    literal = next((part for part in parts if part.startswith("Literal[")), None)
    if literal is not None and len(parts) == 1:
        return Kind.TEXT, False, tuple(re.findall(r"'([^']+)'", literal))
    for part in parts:
        container = re.match(r"(?:list|set|List|Sequence|tuple|Tuple)\b(?:\[(.*)\])?", part)
        if container:
            inner = _kind((container[1] or "str").split(",")[0])[0]
            return (inner if inner in (Kind.INT, Kind.FLOAT) and "str" not in part else Kind.TEXT), True, ()
    if any(part.startswith(("dict", "Dict")) or part.endswith(("Config", "Overrides")) for part in parts):
        return Kind.JSON, False, ()
    simple = {"bool": Kind.SWITCH, "int": Kind.INT, "float": Kind.FLOAT}
    kinds = {simple.get(part, Kind.TEXT) for part in parts}
    return (kinds.pop() if len(kinds) == 1 else Kind.TEXT), False, ()


def _alternatives(annotation: str) -> list[str]:
    """'int | list[str] | None' and 'Optional[Union[int, str]]' -> their members; brackets are respected."""
    wrapped = re.fullmatch(r"(?:Optional|Union)\[(.*)\]", annotation)
    separator = "," if wrapped else "|"
    text, depth, parts = wrapped[1] if wrapped else annotation, 0, [""]
    for character in text:
        depth += (character in "[(") - (character in "])")
        if character == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    parts = [part.strip() for part in parts]
    if wrapped or len(parts) > 1:
        return [member for part in parts for member in _alternatives(part)]
    return parts
