"""A stack folder as a value, and its application to a pinned source, patch by patch.

A folder holds ``pin.toml``, ``series`` and the patch files. What ``series`` does not name is not part of the stack, and is an error when it looks
like a patch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from synctool.errors import ConfigError, SyncError, UsageError
from synctool.git.tree import Tree
from synctool.patches.apply import Outcome, apply_patch
from synctool.patches.difftext import parse_patch
from synctool.patches.digest import patch_sha256, stack_digest
from synctool.patches.filepatch import PatchText
from synctool.patches.header import Header, keep_context, parse_header
from synctool.patches.pathpolicy import Allowed
from synctool.patches.pin import Pin, load_pin
from synctool.patches.series import parse_series, unlisted
from synctool.textfile import read_text


@dataclass(frozen=True)
class StackPatch:
    """One listed patch: its file name, bytes, and where to name it in messages."""

    name: str
    data: bytes
    where: str

    @cached_property
    def text(self) -> PatchText:
        """Parsed on first use.

        Raises:
            Refused: it is malformed.
        """
        return parse_patch(self.data, self.where)

    @cached_property
    def header(self) -> Header:
        """The parsed header."""
        return parse_header(self.text.header)

    @property
    def sha256(self) -> str:
        """SHA-256 (hex) of the file."""
        return patch_sha256(self.data)

    @property
    def keep_context(self) -> int | None:
        """From a waiver in the header, see ``header.keep_context``."""
        return keep_context(self.header, self.where)


@dataclass(frozen=True)
class Stack:
    """A pin and its ordered patches."""

    folder: Path
    pin: Pin
    patches: tuple[StackPatch, ...]

    @cached_property
    def digest(self) -> str:
        """The stack's identity, see ``digest.stack_digest``."""
        return stack_digest(
            self.pin.package, self.pin.version, self.pin.archive.sha256, [(p.name, p.sha256) for p in self.patches]
        )

    def patch(self, name: str) -> StackPatch:
        """The patch of that name; the ending may be left out.

        Raises:
            UsageError: the series names none.
        """
        for patch in self.patches:
            if name in (patch.name, patch.name.rpartition(".")[0]):
                return patch
        known = ", ".join(p.name for p in self.patches) or "none"
        raise UsageError(
            f"no patch is named {name!r}", where=str(self.folder / "series"), hint=f"the series has: {known}"
        )


@dataclass(frozen=True, slots=True)
class Step:
    """One applied patch: the tree before and after (git ids) and what was done to each file."""

    patch: StackPatch
    before: str
    after: str
    outcomes: tuple[Outcome, ...]

    @property
    def offsets(self) -> list[tuple[str, int, int, int]]:
        """``(path, line, offset, alternatives)`` of every hunk that moved."""
        return [
            (outcome.change.path, place.line, place.offset, place.alternatives)
            for outcome in self.outcomes
            for place in outcome.placed
            if place.offset
        ]


def load_stack(folder: Path) -> Stack:
    """Read a stack folder.

    Raises:
        ConfigError: no pin or series, a malformed one, a listed patch that is missing, or a patch file that nothing lists.
    """
    pin = load_pin(folder / "pin.toml")
    series = folder / "series"
    if not os.path.lexists(series):
        raise ConfigError(
            "no series file", where=str(series), hint="an empty one is legal; it lists patch names in order"
        )
    text = read_text(series, "series").replace("\r\n", "\n")
    listed = parse_series(text, str(series))
    patches = []
    for entry in listed:
        path = folder / entry.name
        if path.is_symlink() or not path.is_file():
            raise ConfigError(
                f"{entry.name} is listed but missing",
                where=f"{series}:{entry.line}",
                hint="restore the file or remove the line",
            )
        patches.append(StackPatch(entry.name, path.read_bytes(), str(path)))
    stray = unlisted(folder, listed)
    if stray:
        raise ConfigError(
            f"{', '.join(stray)} not listed", where=str(series), hint="add the patch to series, or move the file away"
        )
    return Stack(folder, pin, tuple(patches))


def find_stack(start: Path, named: Path | None = None) -> Path:
    """The stack folder to use: the named one, ``start`` itself, or the only ``patches/*/*/pin.toml`` below it.

    Raises:
        UsageError: there is none, or more than one.
    """
    if named is not None:
        if not (named / "pin.toml").is_file():
            raise UsageError("not a stack folder: it has no pin.toml", where=str(named))
        return named
    if (start / "pin.toml").is_file():
        return start
    found = sorted(path.parent for path in start.glob("patches/*/*/pin.toml"))
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError(
            "no patch stack here",
            where=str(start),
            hint="run where patches/PACKAGE/VERSION/pin.toml is, or give --stack FOLDER",
        )
    raise UsageError(
        "more than one patch stack here",
        where=str(start),
        hint="choose one: " + ", ".join(f"--stack {p}" for p in found),
    )


def apply_stack(tree: Tree, patches: tuple[StackPatch, ...], allowed: Allowed) -> Iterator[Step]:
    """Apply patches in order to ``tree`` (which is left as it is), yielding a step with a written tree for each.

    Raises:
        DoesNotApply: a patch does not fit; the steps before it were yielded.
        Refused: a patch is malformed or breaks the path policy.
        ConfigError: a patch changes nothing.
    """
    before = tree.write()
    for patch in patches:
        if not patch.text.files:
            raise ConfigError("the patch changes nothing", where=patch.where, hint="remove it: 'vime-sync patch drop'")
        tree, outcomes = apply_patch(tree, patch.text, patch.where, allowed=allowed, keep_context=patch.keep_context)
        after = tree.write()
        if after == before:
            raise ConfigError("the patch changes nothing", where=patch.where, hint="remove it: 'vime-sync patch drop'")
        yield Step(patch, before, after, outcomes)
        before = after


@dataclass(frozen=True, slots=True)
class Application:
    """The whole stack applied as far as it goes: the steps, and the error that stopped it, if any."""

    base: str
    steps: tuple[Step, ...]
    stopped_at: StackPatch | None = None
    error: SyncError | None = None

    @property
    def tree(self) -> str:
        """The tree after the last step."""
        return self.steps[-1].after if self.steps else self.base


def try_stack(tree: Tree, patches: tuple[StackPatch, ...], allowed: Allowed) -> Application:
    """``apply_stack`` that returns its error together with the steps before it."""
    base = tree.write()
    steps: list[Step] = []
    try:
        for step in apply_stack(tree, patches, allowed):
            steps.append(step)
    except SyncError as error:
        return Application(base, tuple(steps), patches[len(steps)], error)
    return Application(base, tuple(steps))
