"""What the patch verbs share: options that name the stack and its source, and JSON forms of common values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from synctool.cli.app import Context

if TYPE_CHECKING:
    from synctool.cli.report import Report
    from synctool.patches.pin import Pin
    from synctool.patches.stack import Stack, Step
    from synctool.patches.store import PinnedSource


@dataclass(frozen=True, slots=True)
class Where:
    """Where a verb finds its stack and the pinned source."""

    directory: Path
    stack: Path | None
    source: str | None
    use_git: bool
    offline: bool
    quiet: bool

    def load(self) -> Stack:
        """The stack."""
        from synctool.patches.stack import load_stack

        return load_stack(self.folder())

    def folder(self) -> Path:
        """The stack's folder."""
        from synctool.patches.stack import find_stack

        return find_stack(self.directory, self.stack)

    def open(self, pin: Pin, *, dry: bool = False) -> PinnedSource:
        """The verified source of a pin."""
        from synctool.cli.terminal import progress
        from synctool.patches.acquire import parse_source
        from synctool.patches.store import open_pin

        with progress(f"getting {pin.label}", quiet=self.quiet) as update:
            return open_pin(
                pin,
                source=parse_source(self.source),
                use_git=self.use_git,
                offline=self.offline,
                dry=dry,
                progress=update,
            )


def stack_options(function: Callable[..., Report]) -> Callable[..., Report]:
    """Add ``--stack``, ``--source``, ``--git`` and ``--offline``; the verb receives them as ``where``."""

    @click.option(
        "--stack",
        "stack",
        type=click.Path(path_type=Path),
        help="The stack's folder.  [default: the only one under patches/]",
    )
    @click.option("--source", help="An archive or unpacked folder of the pinned release, instead of the package index.")
    @click.option("--git", "use_git", is_flag=True, help="Take the source from the pin's git repository.")
    @click.option("--offline", is_flag=True, help="Use the cache only.")
    @functools.wraps(function)
    def wrapper(
        context: Context, stack: Path | None, source: str | None, use_git: bool, offline: bool, **options: Any
    ) -> Report:
        where = Where(context.directory, stack, source, use_git, offline, context.quiet)
        return function(context, where=where, **options)

    return wrapper


def step_data(step: Step) -> dict[str, Any]:
    """The JSON form of one applied patch."""
    return {
        "patch": step.patch.name,
        "sha256": step.patch.sha256,
        "tree": step.after,
        "files": [outcome.change.path for outcome in step.outcomes],
        "offsets": [
            {"path": path, "line": line, "offset": offset, "alternatives": others}
            for path, line, offset, others in step.offsets
        ],
        "context_waived": sum(place.dropped for outcome in step.outcomes for place in outcome.placed),
        "stale_index": [outcome.change.path for outcome in step.outcomes if outcome.stale_index],
    }


def step_line(step: Step) -> str:
    """One line about one applied patch."""
    notes = []
    if step.offsets:
        notes.append(
            "offsets: " + ", ".join(f"{path}:{line} {offset:+d}" for path, line, offset, _ in step.offsets[:4])
        )
    guesses = sum(others > 0 for *_, others in step.offsets)
    if guesses:
        notes.append(f"{guesses} of them fit elsewhere too")
    waived = sum(place.dropped for outcome in step.outcomes for place in outcome.placed)
    if waived:
        notes.append(f"{waived} context lines waived")
    return f"  {step.after[:12]}  {step.patch.name}" + (f"  ({'; '.join(notes)})" if notes else "")


def site_option(function: Callable[..., Report]) -> Callable[..., Report]:
    """Add ``--site-packages [PATH]`` and ``--python``: which environment's package is meant."""

    @click.option(
        "--site-packages",
        is_flag=False,
        flag_value="",
        help="The environment's site-packages folder.  [default: that of --python]",
        metavar="[PATH]",
    )
    @click.option("--python", help="An interpreter whose environment is meant.  [default: this one]")
    @functools.wraps(function)
    def wrapper(context: Context, **options: Any) -> Report:
        return function(context, **options)

    return wrapper
