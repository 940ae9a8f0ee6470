"""Every row of every prompt file is looked at before a process is started: a bad row found by a worker an hour later costs the hour."""

from __future__ import annotations

import difflib
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vime.data.files import Row, read_rows
from vime.errors import DataError

_SHOWN = 10


@dataclass(frozen=True)
class Columns:
    """Which column of a row means what. `flag` names the option prefix in hints (``--input-key`` or ``--eval-input-key``)."""

    input: str
    label: str | None = None
    metadata: str | None = None
    tools: str | None = None
    chat_template: bool = False


@dataclass
class _Trouble:
    """The rows that share one fault."""

    what: str
    hint: str
    rows: list[int] = field(default_factory=list)

    def text(self) -> str:
        shown = ", ".join(map(str, self.rows[:_SHOWN])) + (
            f" and {len(self.rows) - _SHOWN} more" if len(self.rows) > _SHOWN else ""
        )
        return f"{self.what} in row{'s' if len(self.rows) > 1 else ''} {shown}"


def columns_of(args: Namespace) -> Columns:
    """The columns of ``--prompt-data``."""
    return Columns(
        input=args.input_key,
        label=args.label_key,
        metadata=args.metadata_key,
        tools=args.tool_key,
        chat_template=args.apply_chat_template,
    )


def check_rows(path: str, rows: Sequence[Row], columns: Columns) -> None:
    """Raise DataError naming each fault once, with the numbers of its rows and what to do."""
    troubles: dict[str, _Trouble] = {}
    for row in rows:
        for what, hint in _faults(row.values, columns):
            troubles.setdefault(what, _Trouble(what, hint)).rows.append(row.number)
    if not troubles:
        return
    bad = {number for trouble in troubles.values() for number in trouble.rows}
    raise DataError(
        f"{len(bad)} of {len(rows)} rows cannot be used: " + "; ".join(trouble.text() for trouble in troubles.values()),
        where=path,
        hint="; ".join(dict.fromkeys(trouble.hint for trouble in troubles.values() if trouble.hint)) or None,
    )


def preflight(args: Namespace) -> int:
    """Check the prompt file and every evaluation file. Returns the number of training prompts. Raises DataError.

    Without a file (also when it is assumed), or with a data source of the user's own, which may read it as it likes, there is nothing to check: 0.
    """
    from vime.rollout.eval_config import eval_columns, eval_datasets

    count = 0
    if args.assume_files:
        return count
    if args.prompt_data is not None and "data_source_path" not in args.given:
        rows = read_rows(args.prompt_data)
        check_rows(args.prompt_data, rows, columns_of(args))
        count = len(rows)
    for dataset in eval_datasets(args):
        check_rows(dataset.path, read_rows(dataset.path), eval_columns(dataset))
    return count


def steps_of(args: Namespace, prompts: int) -> int | None:
    """Rollout steps of the run: --num-rollout, or as many whole steps as --num-epoch passes over `prompts` give.

    None when neither says (no file of prompts: the data source knows). Raises DataError when the prompts do not fill one step.
    """
    if args.num_rollout is not None or not prompts:
        return args.num_rollout  # type: ignore[no-any-return]
    steps = args.num_epoch * prompts // args.rollout_batch_size
    if steps == 0:
        raise DataError(
            f"{prompts} prompts do not fill one step of {args.rollout_batch_size} in {args.num_epoch} epochs",
            where=args.prompt_data,
            hint="lower --rollout-batch-size or raise --num-epoch",
        )
    return int(steps)


def _faults(values: dict[str, Any], columns: Columns) -> list[tuple[str, str]]:
    faults = []
    present = ", ".join(map(str, values)) or "none"
    if columns.input not in values:
        near = difflib.get_close_matches(columns.input, list(map(str, values)), n=1)
        faults.append(
            (
                f"no column {columns.input!r}",
                f"columns present: {present}; set --input-key{f' {near[0]}' if near else ''}",
            )
        )
    else:
        faults += _prompt_faults(values[columns.input], columns)
    if columns.label is not None and values.get(columns.label) is None:
        faults.append((f"no label {columns.label!r}", f"columns present: {present}; fill the label or set --label-key"))
    if columns.metadata is not None and not isinstance(values.get(columns.metadata) or {}, dict):
        faults.append(
            (
                f"{columns.metadata!r} is no mapping",
                "metadata follows the sample as a mapping; rename the column or set --metadata-key",
            )
        )
    if columns.tools is not None and not isinstance(values.get(columns.tools) or [], list):
        faults.append(
            (f"{columns.tools!r} is no list", "tools are a list of definitions; set --tool-key to another column")
        )
    return faults


def _prompt_faults(prompt: Any, columns: Columns) -> list[tuple[str, str]]:
    if isinstance(prompt, str):
        return [] if prompt else [("empty prompt", "remove the row")]
    if not isinstance(prompt, list):
        return [(f"prompt is a {type(prompt).__name__}", "a prompt is a text or a list of messages")]
    if not prompt:
        return [("no messages", "remove the row")]
    for message in prompt:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return [("a message without a role", "each message is an object with role and content")]
    if not columns.chat_template:
        return [("messages instead of a text", "add --apply-chat-template")]
    return []
