"""Start-up check of a folder that several processes share: what one writes, each other one sees, whole and in time, and locks hold.

A file system that shows writes late, serves a file from a stale cache, tears a rename or keeps locks to one node lets a queue lose or double
work without an error. So every party writes and every other one reads (both ways), a file grows under a reader's eyes, one is replaced again
and again while all others read it, one is locked, one is deleted. Cached answers are provoked: each reader has asked for the file before it is there.

Parties are processes: `Hand` is what each does in its own view of the folder, `Child` and `vime.cluster.folders` carry the orders to it. Standard
library and nothing that takes long to import: ``python -m vime.durable.probe FOLDER`` is a party.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from vime.errors import MachineError
from vime.files import whole_file

#: Seconds that a write may take to be seen by all.
DEADLINE = 10.0
_POLL = 0.005
_ROUNDS, _BLOCK = 20, 16 << 10


class Hand:
    """What one party does below `folder`. Results are plain values: None, or in words what was wrong. Raises OSError."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._held = -1

    def put(self, name: str, text: str) -> None:
        """A whole file, as the queue writes its own."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path, synced=True) as stream:
            stream.write(text.encode())

    def grow(self, name: str, text: str) -> None:
        """More at the end of a file, as packs and journals grow."""
        with open(self.folder / name, "a", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())

    def see(self, name: str, text: str | None, deadline: float) -> str | None:
        """Wait until the file holds `text` and its folder lists it; with None, until it is neither there nor listed."""
        path, end = self.folder / name, time.monotonic() + deadline
        while True:
            found = _read(path)
            listed = _lists(path)
            if found == text and listed is (text is not None):
                return None
            if time.monotonic() > end:
                return _wrong(found, text, listed, deadline)
            time.sleep(_POLL)

    def replace(self, name: str) -> None:
        """Whole new contents, again and again."""
        for number in range(_ROUNDS):
            self.put(name, f"{number:08d}" * (_BLOCK // 8))

    def follow(self, name: str, deadline: float) -> str | None:
        """Read while another replaces: each time the file is there, whole, and not older than before."""
        path, last, end = self.folder / name, -1, time.monotonic() + deadline
        while last < _ROUNDS - 1:
            found = _read(path)
            if found is not None:
                number = found[:8]
                if not found or found != number * (_BLOCK // 8):
                    return f"read a torn file, {len(found)} of {_BLOCK} bytes or of two versions, while it was replaced"
                if int(number) < last:
                    return f"read version {int(number)} after version {last}"
                last = int(number)
            elif last >= 0:
                return "found no file while it was replaced"
            if time.monotonic() > end:
                return f"saw version {last} of {_ROUNDS - 1} after {deadline:g} s"
            time.sleep(0)
        return None

    def lock(self, name: str) -> bool:
        """Try to lock a file that is there. Whether it worked."""
        descriptor = os.open(self.folder / name, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._held = descriptor
        return True

    def unlock(self) -> None:
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def remove(self, name: str) -> None:
        (self.folder / name).unlink()


class Party(Protocol):
    """`name` for messages. `order` begins an act of its `Hand`, by name, and gives what waits for its result."""

    @property
    def name(self) -> str: ...

    def order(self, act: str, *given: Any) -> Callable[[], Any]: ...


@dataclass(frozen=True)
class Here:
    """This process."""

    name: str
    hand: Hand

    def order(self, act: str, *given: Any) -> Callable[[], Any]:
        return lambda: getattr(self.hand, act)(*given)


class Child:
    """A process of its own on this host. Close it."""

    def __init__(self, folder: Path, name: str = "a second process") -> None:
        self.name = name
        root = str(Path(__file__).resolve().parents[2])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "vime.durable.probe", str(folder)],
            env=os.environ | {"PYTHONPATH": root},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def order(self, act: str, *given: Any) -> Callable[[], Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([act, *given]) + "\n")
        self._process.stdin.flush()
        return self._answer

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise OSError(f"{self.name} ended with exit code {self._process.wait()}")
        answer = json.loads(line)
        if isinstance(answer, dict):
            raise OSError(answer["errno"], answer["error"])
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()


@contextlib.contextmanager
def second_process(folder: Path) -> Iterator[Child]:
    child = Child(folder)
    try:
        yield child
    finally:
        child.close()


def probe(folder: Path, parties: Sequence[Party], flag: str, deadline: float = DEADLINE) -> float:
    """Put `folder`, as each of `parties` (two or more) sees it, to the test. Returns the seconds that it took.

    Raises MachineError, one line: who did not see what of whom, or what failed. What the check wrote is removed. `flag` names the folder's option.
    """
    begun = time.monotonic()
    room = f".probe-{os.getpid()}-{time.time_ns():x}"
    try:
        _both_ways(room, parties, deadline)
        first, *others = parties
        grown = f"{room}/grown"
        first.order("put", grown, "one\n")()
        _all(others, "see", grown, "one\n", deadline, by=first, what="a new file")
        first.order("grow", grown, "two\n")()
        _all(others, "see", grown, "one\ntwo\n", deadline, by=first, what="an addition to a file")
        _replaced(f"{room}/replaced", first, others, deadline)
        first.order("remove", grown)()
        _all(others, "see", grown, None, deadline, by=first, what="a removal")
        _locked(f"{room}/{_token(0)}", parties)
    except Refused as refused:
        raise MachineError(
            f"{flag}: processes do not share this folder as they must: {refused}",
            where=str(folder),
            hint="mount it on every node at the same path, without write-back, open and directory caches; or name another folder",
        ) from None
    except OSError as error:
        raise MachineError(f"{flag}: {error.strerror or error}", where=str(folder)) from error
    finally:
        shutil.rmtree(folder / room, ignore_errors=True)
    return time.monotonic() - begun


class Refused(Exception):
    """What a party saw that must not be."""


def _token(number: int) -> str:
    return f"party-{number}"


def _both_ways(room: str, parties: Sequence[Party], deadline: float) -> None:
    names = [f"{room}/{_token(number)}" for number in range(len(parties))]
    for party in parties:  # a cache may now hold that nothing is there
        for name in names:
            party.order("see", name, None, 0.0)()
    for name, party in zip(names, parties, strict=True):
        party.order("put", name, name)()
        others = [one for one in parties if one is not party]
        _all(others, "see", name, name, deadline, by=party, what="a new file")


def _replaced(name: str, writer: Party, readers: Sequence[Party], deadline: float) -> None:
    following = [(reader, reader.order("follow", name, deadline)) for reader in readers]
    writer.order("replace", name)()
    for reader, answer in following:
        if (wrong := answer()) is not None:
            raise Refused(f"{reader.name} {wrong} by {writer.name}")


def _locked(name: str, parties: Sequence[Party]) -> None:
    for holder in parties:
        if not holder.order("lock", name)():
            raise Refused(f"{holder.name} cannot lock a file that nobody holds")
        for other in parties:
            if other is not holder and other.order("lock", name)():
                raise Refused(f"{other.name} took a lock that {holder.name} holds")
        holder.order("unlock")()


def _all(parties: Sequence[Party], act: str, *given: Any, by: Party, what: str) -> None:
    for party, answer in [(party, party.order(act, *given)) for party in parties]:
        if (wrong := answer()) is not None:
            raise Refused(f"{party.name} did not see {what} of {by.name}: {wrong}")


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def _lists(path: Path) -> bool:
    try:
        return any(one.name == path.name for one in path.parent.iterdir())
    except FileNotFoundError:
        return False


def _wrong(found: str | None, text: str | None, listed: bool, deadline: float) -> str:
    if text is None:
        state = "it is still there" if found is not None else "its folder still lists it"
    elif found is None:
        state = "no such file"
    elif found != text:
        state = f"{len(found)} of {len(text)} bytes" if text.startswith(found) else "other contents"
    else:
        state = "its folder does not list it"
    return f"{state} after {deadline:g} s"


def main(folder: str) -> None:
    hand = Hand(folder)
    for line in sys.stdin:
        act, *given = json.loads(line)
        try:
            answer = getattr(hand, act)(*given)
        except OSError as error:
            answer = {"errno": error.errno, "error": error.strerror or str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
