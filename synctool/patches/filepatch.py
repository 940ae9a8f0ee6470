"""A parsed patch as values: what it does to which file, apart from any tree."""

from __future__ import annotations

from dataclasses import dataclass, replace

from synctool.patches.binary import BinaryDelta


@dataclass(frozen=True, slots=True)
class Hunk:
    """One hunk. Line numbers are 1-based, as written. ``lines`` keep their ending; the last one of a side may have none."""

    old_start: int
    new_start: int
    #: (kind, content): kind is ``" "``, ``"-"`` or ``"+"``.
    lines: tuple[tuple[str, bytes], ...]
    #: Line of the patch file at which the hunk starts, for messages.
    at: int = 0

    @property
    def old(self) -> list[bytes]:
        """The lines that must be there."""
        return [text for kind, text in self.lines if kind != "+"]

    @property
    def new(self) -> list[bytes]:
        """The lines that will be there."""
        return [text for kind, text in self.lines if kind != "-"]

    @property
    def leading(self) -> int:
        """Context lines before the first change."""
        return next((i for i, (kind, _) in enumerate(self.lines) if kind != " "), len(self.lines))

    @property
    def trailing(self) -> int:
        """Context lines after the last change."""
        return next((i for i, (kind, _) in enumerate(reversed(self.lines)) if kind != " "), len(self.lines))

    @property
    def changes(self) -> tuple[tuple[str, bytes], ...]:
        """Removed and added lines only: what the hunk means, apart from where it goes."""
        return tuple(line for line in self.lines if line[0] != " ")

    def reversed(self) -> Hunk:
        """The hunk that takes this one back."""
        swap = {"+": "-", "-": "+", " ": " "}
        return Hunk(self.new_start, self.old_start, tuple((swap[k], t) for k, t in self.lines), self.at)


@dataclass(frozen=True, slots=True)
class FilePatch:
    """What a patch does to one file. ``old_path`` None: the file is created; ``new_path`` None: it is deleted.

    Modes are octal text where the patch states them. ``old_oid`` and ``new_oid`` are the (possibly shortened) blob ids of the ``index`` line.
    """

    old_path: str | None
    new_path: str | None
    old_mode: str | None = None
    new_mode: str | None = None
    old_oid: str | None = None
    new_oid: str | None = None
    #: ``"rename"``, ``"copy"`` or None.
    move: str | None = None
    hunks: tuple[Hunk, ...] = ()
    #: (forward, backward) data of a binary patch.
    binary: tuple[BinaryDelta, BinaryDelta | None] | None = None
    at: int = 0

    @property
    def path(self) -> str:
        """The path to name in messages: the new one if there is one."""
        found = self.new_path if self.new_path is not None else self.old_path
        assert found is not None
        return found

    @property
    def paths(self) -> tuple[str, ...]:
        """All paths that are read or written."""
        return tuple(dict.fromkeys(p for p in (self.old_path, self.new_path) if p is not None))

    def reversed(self) -> FilePatch:
        """The change that takes this one back (a copy becomes the deletion of what was copied)."""
        binary = None
        if self.binary is not None and self.binary[1] is not None:
            binary = (self.binary[1], self.binary[0])
        old = None if self.move == "copy" else self.old_path
        return replace(
            self,
            old_path=self.new_path,
            new_path=old,
            old_mode=self.new_mode,
            new_mode=self.old_mode,
            old_oid=self.new_oid,
            new_oid=self.old_oid,
            move="rename" if self.move == "rename" else None,
            hunks=tuple(h.reversed() for h in self.hunks),
            binary=binary,
        )


@dataclass(frozen=True, slots=True)
class PatchText:
    """A parsed patch file: the header's bytes, kept as they are, and its changes in order."""

    header: bytes
    files: tuple[FilePatch, ...]
