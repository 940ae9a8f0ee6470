"""Reads a patch file into values: header text, then one ``FilePatch`` for each file, with its hunks.

Hunk bodies are read by unidiff; everything around them (extended git headers, quoted names, modes, renames, binary data, the no-newline mark)
is read here, because a patch is untrusted and each of its lines must be accounted for: a line that belongs to nothing is refused, where git
and unidiff would skip it. Content stays bytes throughout.
"""

from __future__ import annotations

import re

from synctool.errors import Refused
from synctool.git.quoting import unquote
from synctool.patches.binary import read_binary
from synctool.patches.filepatch import FilePatch, Hunk, PatchText

#: Larger patch files are refused: the largest real ones are a hundredth of this.
MAX_PATCH_BYTES = 16 << 20

_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_INDEX = re.compile(rb"index ([0-9a-f]{4,64})\.\.([0-9a-f]{4,64})(?: (\d{6}))?$")
_SCORE = re.compile(rb"(?:dis)?similarity index \d{1,3}%$")
_ABSENT = "/dev/null"
#: The id of no content, in both of git's object formats.
_EMPTY_BLOBS = (
    "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391",
    "473a0f4c3be8a93681a267e3b1e9a7dcda1185436fe141f7749120a303721813",
)
_NO_NEWLINE = "\\ No newline at end of file"


class PatchSyntaxError(Refused):
    """A patch file is malformed; ``where`` names file and line."""


def split_header(data: bytes) -> tuple[bytes, bytes]:
    """A patch file's header and body. The body starts at the first ``diff --git``, ``Index:`` or ``---``/``+++``/``@@`` group."""
    position = 0
    while position < len(data):
        end = data.find(b"\n", position) + 1 or len(data)
        line = data[position:end]
        if line.startswith(b"diff --git ") or _starts_plain(data, position, end, line):
            return data[:position], data[position:]
        position = end
    return data, b""


def _starts_plain(data: bytes, position: int, end: int, line: bytes) -> bool:
    if line.startswith(b"Index: "):
        following = data[end : data.find(b"\n", end) + 1]
        return following.startswith((b"=====", b"--- "))
    if not line.startswith(b"--- "):
        return False
    second = data.find(b"\n", end) + 1 or len(data)
    return data.startswith(b"+++ ", end) and data.startswith(b"@@ -", second)


def parse_patch(data: bytes, name: str) -> PatchText:
    """Parse a patch file. ``name`` stands in error messages.

    Raises:
        PatchSyntaxError: a line belongs to nothing, a hunk is cut short or its counts are wrong, names disagree, or the file is too large.
    """
    if len(data) > MAX_PATCH_BYTES:
        raise PatchSyntaxError(f"patch has {len(data):,} bytes, over the bound of {MAX_PATCH_BYTES:,}", where=name)
    header, body = split_header(data)
    return PatchText(header, tuple(_Reader(body, name, header.count(b"\n") + 1).files()))


class _Reader:
    """Walks over the lines of a patch body."""

    def __init__(self, body: bytes, name: str, first_line: int) -> None:
        self.lines = body.split(b"\n")
        # A final newline ends the last line; without one the last line is cut off, which hunks notice.
        self.cut = self.lines.pop() != b""
        if self.cut:
            self.lines = body.split(b"\n")
        self.name = name
        self.first = first_line
        self.at = 0

    def fail(self, title: str, at: int | None = None, hint: str | None = None) -> PatchSyntaxError:
        line = self.first + (self.at if at is None else at)
        return PatchSyntaxError(title, where=f"{self.name}:{line}", hint=hint)

    def files(self) -> list[FilePatch]:
        found = []
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.startswith(b"diff --git "):
                found.append(self.git_file())
            elif line.startswith((b"--- ", b"Index: ")):
                found.append(self.plain_file())
            elif self._only_signature():
                break
            elif line.startswith((b"@@ -", b"+", b"-", b" ", b"\\")):
                raise self.fail("line outside of a hunk", hint="the line counts of the hunk above are too small")
            else:
                raise self.fail(f"line belongs to no change: {line[:60].decode('utf-8', 'replace')!r}")
        return found

    def _only_signature(self) -> bool:
        """Whether what is left is blank, or the ``-- `` signature that ends a mail."""
        rest = [line for line in self.lines[self.at :] if line.strip()]
        return not rest or (rest[0].rstrip(b"\r") in (b"-- ", b"--") and len(rest) <= 2)

    # ---- git's own form ----------------------------------------------------------------------------------------------------------

    def git_file(self) -> FilePatch:
        start = self.at
        line = self.lines[start]
        if line.endswith(b"\r"):
            raise self.fail(
                "the patch has CRLF line ends in its headers", hint="convert the patch file, not the source, to LF"
            )
        both = _names_of_git_line(line[len(b"diff --git ") :])
        fields: dict[str, str] = {}
        self.at += 1
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if not self._extended(line, fields):
                break
            self.at += 1
        old = fields.get("from") or (both[0] if both else None)
        new = fields.get("to") or (both[1] if both else None)
        binary = None
        hunks: tuple[Hunk, ...] = ()
        if self.at < len(self.lines) and self.lines[self.at].startswith(b"--- "):
            old_named, new_named = self._file_lines()
            if old_named is not None:
                if both is not None and old_named != old:
                    raise self.fail(f"file name {old_named!r} differs from the 'diff --git' line", start)
                old = old_named
            if new_named is not None:
                if both is not None and new_named != new:
                    raise self.fail(f"file name {new_named!r} differs from the 'diff --git' line", start)
                new = new_named
            if (old_named is None) != ("created" in fields) or (new_named is None) != ("deleted" in fields):
                raise self.fail("'/dev/null' and the 'new file' or 'deleted file' line disagree", start)
            hunks = self._hunks(old_named or new_named or "file")
            old, new = old or new, new or old
        elif self.at < len(self.lines) and self.lines[self.at] == b"GIT binary patch":
            binary, self.at = read_binary(self.lines, self.at + 1, self.fail)
        elif self.at < len(self.lines) and self.lines[self.at].startswith(b"Binary files "):
            raise self.fail("binary change without its data", hint="make the patch with 'git diff --binary'")
        if old is None or new is None:
            raise self.fail("the file's name cannot be read", start)
        if "move" not in fields and old != new:
            raise self.fail(f"the names {old!r} and {new!r} differ, but nothing says rename or copy", start)
        created, deleted = "created" in fields, "deleted" in fields
        if not hunks and binary is None and not _complete_without_hunks(fields):
            raise self.fail("a file without hunks", start, "the patch is empty or was cut off")
        if created and deleted:
            raise self.fail("a file cannot be new and deleted at once", start)
        return FilePatch(
            None if created else old,
            None if deleted else new,
            fields.get("old_mode") or (None if created else fields.get("index_mode")),
            fields.get("new_mode") or (None if deleted else fields.get("index_mode")),
            fields.get("old_oid"),
            fields.get("new_oid"),
            fields.get("move"),
            hunks,
            binary,
            self.first + start,
        )

    def _extended(self, line: bytes, fields: dict[str, str]) -> bool:
        """Take one extended header line into ``fields``; False if the line is none."""
        for prefix, keys in (
            (b"new file mode ", ("created", "new_mode")),
            (b"deleted file mode ", ("deleted", "old_mode")),
            (b"old mode ", ("old_mode",)),
            (b"new mode ", ("new_mode",)),
        ):
            if line.startswith(prefix):
                mode = line[len(prefix) :]
                if not re.fullmatch(rb"[0-7]{6}", mode):
                    raise self.fail(f"{mode[:20]!r} is not a file mode")
                for key in keys:
                    if key in fields:
                        raise self.fail("the same header line stands twice")
                    fields[key] = mode.decode()
                return True
        for word, key in ((b"rename", "rename"), (b"copy", "copy")):
            for side in ("from", "to"):
                prefix = word + b" " + side.encode() + b" "
                if line.startswith(prefix):
                    if side in fields or fields.get("move", key) != key:
                        raise self.fail("the same header line stands twice")
                    fields["move"] = key
                    fields[side] = self._name(line[len(prefix) :], strip=False)
                    return True
        index = _INDEX.match(line)
        if index:
            fields["old_oid"], fields["new_oid"] = index[1].decode(), index[2].decode()
            if index[3]:
                fields["index_mode"] = index[3].decode()
            return True
        return bool(_SCORE.match(line))

    def _name(self, text: bytes, *, strip: bool) -> str:
        """A path as written: perhaps quoted, perhaps with a leading ``a/`` component to strip."""
        if text.startswith(b'"'):
            read = unquote(text)
            if read is None or read[1].strip():
                raise self.fail("a quoted file name is malformed")
            name = read[0]
        else:
            name = text.decode("utf-8", "surrogateescape")
        if name.endswith("\r"):
            raise self.fail(
                "the patch has CRLF line ends in its headers", hint="convert the patch file, not the source, to LF"
            )
        if not strip:
            return name
        if name.startswith("/"):
            raise self.fail(f"file name {name!r} is absolute")
        prefix, slash, rest = name.partition("/")
        if not slash or not rest:
            raise self.fail(
                f"file name {name!r} has no 'a/' or 'b/' before it",
                hint="make the patch with 'git diff' or 'diff -u a b'",
            )
        if prefix in ("", ".", ".."):
            raise self.fail(f"file name {name!r} is not allowed")
        return rest

    def _file_lines(self) -> tuple[str | None, str | None]:
        """The names on the ``---`` and ``+++`` lines; None for ``/dev/null``."""
        names: list[str | None] = []
        for mark in (b"--- ", b"+++ "):
            if self.at >= len(self.lines) or not self.lines[self.at].startswith(mark):
                raise self.fail(f"expected a '{mark.decode().strip()}' line")
            text = self.lines[self.at][len(mark) :]
            if not text.startswith(b'"'):
                text = text.partition(b"\t")[0]  # a time stamp, or git's mark after a name with a space
            else:
                text = text[: text.rfind(b'"') + 1]
            names.append(None if text.rstrip(b"\r") == _ABSENT.encode() else self._name(text, strip=True))
            self.at += 1
        return names[0], names[1]

    # ---- what diff -u and quilt write ---------------------------------------------------------------------------------------------

    def plain_file(self) -> FilePatch:
        start = self.at
        if self.lines[self.at].startswith(b"Index: "):
            self.at += 1
            if self.at < len(self.lines) and self.lines[self.at].startswith(b"====="):
                self.at += 1
        old, new = self._file_lines()
        hunks = self._hunks(new or old or "file")
        if old is None and new is None:
            raise self.fail("both names are /dev/null", start)
        if old is not None and new is not None:
            old = new  # "x.orig/a" against "x/a": after the first component both name the same file
        return FilePatch(old, new, hunks=hunks, at=self.first + start)

    # ---- hunks ---------------------------------------------------------------------------------------------------------------------

    def _hunks(self, name: str) -> tuple[Hunk, ...]:
        first = self.at
        spans: list[int] = []
        while self.at < len(self.lines) and self.lines[self.at].startswith(b"@@ "):
            spans.append(self.at)
            self._pass_hunk()
        if not spans:
            raise self.fail("a file without hunks", hint="the patch is empty or was cut off")
        return read_hunks(self.lines[first : self.at], self.first + first)

    def _pass_hunk(self) -> None:
        """Move past one hunk by its counts, checking each line's first byte."""
        start = self.at
        head = _HUNK.match(self.lines[start])
        if head is None:
            raise self.fail("malformed hunk header")
        old = int(head[2]) if head[2] is not None else 1
        new = int(head[4]) if head[4] is not None else 1
        changed = False
        self.at += 1
        while old > 0 or new > 0:
            if self.at >= len(self.lines) or (self.cut and self.at == len(self.lines) - 1):
                raise self.fail("the hunk is cut short", start, "its line counts ask for more lines than the file has")
            kind = self.lines[self.at][:1]
            if kind in (b" ", b""):
                old, new = old - 1, new - 1
            elif kind == b"-":
                old, changed = old - 1, True
            elif kind == b"+":
                new, changed = new - 1, True
            elif kind != b"\\" or self.at == start + 1:
                raise self.fail("the hunk is cut short", start, f"line {self.first + self.at} is not part of a hunk")
            if old < 0 or new < 0:
                raise self.fail("the hunk's line counts are wrong", start)
            self.at += 1
        if not changed:
            raise self.fail("the hunk changes nothing", start)
        if self.at < len(self.lines) and self.lines[self.at].startswith(b"\\"):
            self.at += 1


def read_hunks(lines: list[bytes], first_line: int) -> tuple[Hunk, ...]:
    """Hunks from their lines (without newlines), by unidiff. Latin-1 carries every byte through its text interface unchanged."""
    from unidiff import PatchSet

    # unidiff knows the no-newline mark in English only and would drop a translated one.
    plain = (_NO_NEWLINE if line.startswith(b"\\") else line.decode("latin-1") for line in lines)
    text = "--- a\n+++ b\n" + "".join(f"{line}\n" for line in plain)
    parsed = PatchSet(text)[0]
    hunks = []
    for hunk in parsed:
        body: list[tuple[str, bytes]] = []
        for line in hunk:
            if line.line_type == "\\":
                kind, content = body[-1]
                body[-1] = (kind, content.removesuffix(b"\n"))
                continue
            body.append((line.line_type, line.value.encode("latin-1")))
        at = first_line + (hunk[0].diff_line_no or 4) - 4
        hunks.append(Hunk(hunk.source_start, hunk.target_start, tuple(body), at))
    return tuple(hunks)


def _complete_without_hunks(fields: dict[str, str]) -> bool:
    """Whether header lines alone are a whole change: an empty file comes or goes, a pure move, or a change of mode."""
    old, new = fields.get("old_oid", ""), fields.get("new_oid", "")
    if "created" in fields or "deleted" in fields:
        content = new if "created" in fields else old
        return not content.strip("0") or any(empty.startswith(content) for empty in _EMPTY_BLOBS)
    moved = "move" in fields or ("old_mode" in fields and "new_mode" in fields)
    return moved and old == new


def _names_of_git_line(rest: bytes) -> tuple[str, str] | None:
    """Both names of a ``diff --git`` line with their first component stripped, when the line alone decides them (equal names, or quoted)."""
    if rest.startswith(b'"') or rest.endswith(b'"'):
        return _quoted_pair(rest)
    # Unquoted names may hold spaces: only a split into two equal names is certain.
    middle = (len(rest) - 1) // 2
    left, right = rest[:middle], rest[middle + 1 :]
    if rest[middle : middle + 1] != b" ":
        return None
    _, slash, one = left.partition(b"/")
    _, also, two = right.partition(b"/")
    if not slash or not also or one != two or not one or left.startswith(b"/") or right.startswith(b"/"):
        return None
    name = one.decode("utf-8", "surrogateescape")
    return name, name


def _quoted_pair(rest: bytes) -> tuple[str, str] | None:
    names: list[str] = []
    if rest.startswith(b'"'):
        read = unquote(rest)
        if read is None or not read[1].startswith(b" "):
            return None
        names.append(read[0])
        second = read[1][1:]
    else:
        first, space, second = rest.partition(b' "')
        if not space:
            return None
        names.append(first.decode("utf-8", "surrogateescape"))
        second = b'"' + second
    if second.startswith(b'"'):
        read = unquote(second)
        if read is None or read[1]:
            return None
        names.append(read[0])
    else:
        names.append(second.decode("utf-8", "surrogateescape"))
    stripped = [name.partition("/")[2] for name in names]
    if not all(stripped) or any(name.startswith("/") for name in names):
        return None
    return stripped[0], stripped[1]
