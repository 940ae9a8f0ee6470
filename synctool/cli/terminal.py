"""The terminal rim: consoles that honour NO_COLOR, and progress that shows only where someone watches."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from synctool.progress import Progress, silent

if TYPE_CHECKING:
    from rich.console import Console


#: Control characters that a terminal obeys. Names and messages come from upstream: shown, they must not move the cursor or retitle the window.
_CONTROLS = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"} | {ord("\r"): ""}


def printable(text: str) -> str:
    """Text that is safe to show: no control characters but line ends and tabs, no undecodable bytes."""
    return text.translate(_CONTROLS).encode("utf-8", "replace").decode()


def _console(*, stderr: bool) -> Console:
    """A rich console on which text is text: markup off, control characters replaced after layout and before styles."""
    from collections.abc import Iterable

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Plain(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=printable(segment.text))

        def on_broken_pipe(self) -> None:
            raise

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else int(os.environ.get("COLUMNS", "120"))
    return Plain(stderr=stderr, markup=False, width=width)


@cache
def console() -> Console:
    """Standard output. Off a terminal it is 120 columns wide, so that tables in logs are whole."""
    return _console(stderr=False)


@cache
def error_console() -> Console:
    """Standard error."""
    return _console(stderr=True)


__all__ = ["Progress", "console", "error_console", "progress", "silent"]


@contextmanager
def progress(title: str, *, quiet: bool = False, after: float = 1.0, every: float = 20.0) -> Iterator[Progress]:
    """A bar on a terminal; off it one keep-alive line each ``every`` seconds. Nothing for work shorter than ``after`` seconds."""
    start = last = time.monotonic()
    bar = None
    task = None

    def update(done: int, total: int, what: str = "") -> None:
        nonlocal last, bar, task
        now = time.monotonic()
        if quiet or now - start < after:
            return
        if sys.stderr.isatty():
            if bar is None:
                from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
                from rich.progress import Progress as Bar

                columns = (
                    TextColumn("{task.description}"),
                    BarColumn(),
                    MofNCompleteColumn(),
                    TimeElapsedColumn(),
                    TextColumn("{task.fields[what]}"),
                )
                bar = Bar(*columns, console=error_console(), transient=True)
                bar.start()
                task = bar.add_task(title, total=total, what=what)
            assert task is not None
            bar.update(task, completed=done, total=total, what=what)
        elif now - last >= every:
            last = now
            print(printable(f"{title}: {done}/{total} {what}".rstrip()), file=sys.stderr, flush=True)

    try:
        yield update
    finally:
        if bar is not None:
            bar.stop()
