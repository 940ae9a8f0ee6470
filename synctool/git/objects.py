"""Reads objects through one ``git cat-file --batch`` process and writes loose objects, by themselves, without an index or checkout."""

from __future__ import annotations

import hashlib
import os
import subprocess
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType

from synctool.errors import Refused, RepositoryError
from synctool.git.runner import FULL_HISTORY, git_command, scrubbed_environment
from synctool.whole_file import whole_file

#: A blob larger than this is never loaded: text that people merge is far smaller, and memory stays bounded.
MAX_OBJECT_BYTES = 64 << 20


class ObjectStore:
    """The objects of one repository, plus those that it borrows.

    With ``dry`` set, written objects stay in memory: ids are computed and later reads find them, but the repository is not touched.
    """

    def __init__(self, git_dir: Path, objects_dir: Path, *, algorithm: str = "sha1", dry: bool = False) -> None:
        self.git_dir = git_dir
        self.objects_dir = objects_dir
        self.algorithm = algorithm
        self.dry = dry
        self._written: dict[str, tuple[str, bytes]] = {}
        self._known: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()

    def __enter__(self) -> ObjectStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the reader process."""
        if self._process is not None:
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process.wait()
            self._process = None

    @property
    def pending(self) -> Mapping[str, tuple[str, bytes]]:
        """What a dry store holds in memory only: id -> (kind, content)."""
        return self._written

    def _reader(self) -> subprocess.Popen[bytes]:
        # A forked process needs a reader of its own: answers to both in one pipe could not be told apart.
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            self._owner = os.getpid()
            self._process = subprocess.Popen(
                git_command(self.git_dir, ["cat-file", "--batch-command", "--buffer"]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=scrubbed_environment(),
            )
        return self._process

    def _ask(self, command: str, names: list[str]) -> subprocess.Popen[bytes]:
        reader = self._reader()
        assert reader.stdin is not None
        reader.stdin.write("".join(f"{command} {name}\n" for name in names).encode() + b"flush\n")
        reader.stdin.flush()
        return reader

    def info(self, name: str) -> tuple[str, str, int] | None:
        """``(oid, kind, size in bytes)`` of an object by id or expression, or None if it is missing."""
        if name in self._written:
            kind, data = self._written[name]
            return name, kind, len(data)
        reader = self._ask("info", [name])
        assert reader.stdout is not None
        words = reader.stdout.readline().split()
        if len(words) != 3:
            return None
        return words[0].decode(), words[1].decode(), int(words[2])

    def _missing(self, oid: str) -> RepositoryError:
        return RepositoryError(f"object {oid[:12]} is missing", where=str(self.git_dir), hint=FULL_HISTORY)

    def read(self, oid: str, kind: str | None = None) -> bytes:
        """The content of an object.

        Raises:
            RepositoryError: the object is missing (a shallow or partial clone) or of another kind.
            Refused: it is larger than ``MAX_OBJECT_BYTES``.
        """
        if oid in self._written:
            found, data = self._written[oid]
        else:
            known = self.info(oid)
            if known is None:
                raise self._missing(oid)
            found = known[1]
            if known[2] > MAX_OBJECT_BYTES:
                raise Refused(f"object {oid[:12]} has {known[2]:,} bytes, over the bound of {MAX_OBJECT_BYTES:,}")
            reader = self._ask("contents", [oid])
            assert reader.stdout is not None
            reader.stdout.readline()
            data = reader.stdout.read(known[2])
            reader.stdout.read(1)
        if kind is not None and found != kind:
            raise RepositoryError(f"object {oid[:12]} is a {found}, not a {kind}", where=str(self.git_dir))
        return data

    def read_many(self, oids: Iterable[str]) -> dict[str, bytes]:
        """Contents of many objects, without those over the size bound.

        Raises:
            RepositoryError: an object is missing (a shallow or partial clone). It must never pass for an empty one.
        """
        names = list(dict.fromkeys(oids))
        result: dict[str, bytes] = {oid: self._written[oid][1] for oid in names if oid in self._written}
        rest = [oid for oid in names if oid not in result]
        for start in range(0, len(rest), 256):
            chunk = rest[start : start + 256]
            # Sizes first: a huge blob must not be streamed into memory only to be refused.
            reader = self._ask("info", chunk)
            assert reader.stdout is not None
            sizes = [reader.stdout.readline().split() for _ in chunk]
            absent = next((oid for oid, words in zip(chunk, sizes, strict=True) if len(words) != 3), None)
            if absent is not None:
                raise self._missing(absent)
            wanted = [oid for oid, words in zip(chunk, sizes, strict=True) if int(words[2]) <= MAX_OBJECT_BYTES]
            # All requests of a chunk fit into the pipe (256 of some 75 bytes), so this never waits while git waits for its answers to be read.
            reader = self._ask("contents", wanted)
            assert reader.stdout is not None
            for oid in wanted:
                size = int(reader.stdout.readline().split()[2])
                result[oid] = reader.stdout.read(size)
                reader.stdout.read(1)
        return result

    def hash(self, kind: str, data: bytes) -> str:
        """The id that git gives to this content."""
        return hashlib.new(self.algorithm, b"%s %d\0" % (kind.encode(), len(data)) + data).hexdigest()

    def write(self, kind: str, data: bytes) -> str:
        """Write an object (if it is not there yet) and return its id. Crash-safe: temporary file, then rename."""
        oid = self.hash(kind, data)
        if oid in self._known or oid in self._written:
            return oid
        if self.dry:
            self._written[oid] = (kind, data)
            return oid
        self._known.add(oid)
        folder = self.objects_dir / oid[:2]
        target = folder / oid[2:]
        if target.exists():
            return oid
        folder.mkdir(parents=True, exist_ok=True)
        with whole_file(target, 0o444, prefix="tmp_obj_") as file:  # git's name: what a crash leaves, its gc removes
            file.write(zlib.compress(b"%s %d\0" % (kind.encode(), len(data)) + data, 1))
        return oid

    def write_blob(self, data: bytes) -> str:
        """Write a blob and return its id."""
        return self.write("blob", data)
