"""What a verb returns: one value that renders as text for people and as JSON for programs.

The JSON envelope is stable: ``{"schema": "vime-sync/1", "verb", "exit_code", "data", "messages"}``. Fields are added, never renamed or removed,
within one schema number.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from synctool.errors import Exit
from synctool.jsontext import dumps

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = "vime-sync/1"


@dataclass
class Report:
    """The result of one verb.

    ``data`` holds only JSON values. ``body`` is a text that was asked for, printed to the byte. ``render`` draws on a rich console; ``summary`` lines
    follow. ``messages`` are remarks (warnings, what to do next) that go to stderr for people and into the envelope for programs.
    """

    verb: str
    data: dict[str, Any]
    summary: list[str] = field(default_factory=list)
    render: Callable[[Console], None] | None = None
    messages: list[str] = field(default_factory=list)
    exit_code: Exit = Exit.OK
    body: str | None = None

    def envelope(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "schema": SCHEMA,
            "verb": self.verb,
            "exit_code": int(self.exit_code),
            "data": self.data,
            "messages": self.messages,
        }


def show(report: Report, *, as_json: bool, quiet: bool = False) -> None:
    """Print a report on stdout (remarks on stderr)."""
    if as_json:
        # One write: json.dump makes one for every token, a second for the plan of a long history.
        sys.stdout.write(dumps(report.envelope(), indent=1, default=str) + "\n")
        return
    from synctool.cli.terminal import console, error_console, printable

    if not quiet:
        if report.body is not None:
            text = printable(report.body) if sys.stdout.isatty() else report.body
            sys.stdout.flush()
            sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
            sys.stdout.buffer.flush()
        if report.render is not None:
            report.render(console())
        for line in report.summary:
            console().print(line, markup=False, highlight=False, soft_wrap=True)
    for line in report.messages:
        error_console().print(line, markup=False, highlight=False, soft_wrap=True)
