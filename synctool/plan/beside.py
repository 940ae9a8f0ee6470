"""A part of the work in a second process on the second core. Forked, it holds all that this one holds; its answers come back through a pipe.

Whatever happens to it (killed, out of memory, never started), nothing is lost: then that part is done here. So it must be work that changes nothing.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, Generic, TypeVar

T = TypeVar("T")


@contextmanager
def beside(work: Callable[[], Iterable[T]], *, worth: bool = True) -> Iterator[Callable[[], Iterable[T]]]:
    """Begin ``work`` in a second process, if that is ``worth`` it. What is yielded waits for its answers, or does the work here if none are to come.

    The answers must be picklable. Leaving the block ends the second process, whether it was asked or not.
    """
    child = _fork(work) if worth and may_fork() else None
    if child is None:
        yield work
        return
    try:
        yield lambda: work() if (answers := child.answers()) is None else answers
    finally:
        child.end()


def may_fork() -> bool:
    """Whether a second process would help: there is a core for it, and no other thread, whose locks it would find held for ever."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return hasattr(os, "fork") and cores > 1 and threading.active_count() == 1


class _Child(Generic[T]):
    """A running second process and the pipe that it answers through."""

    def __init__(self, pid: int, pipe: BinaryIO) -> None:
        self._pid = pid
        self._pipe = pipe
        self._alive = True

    def answers(self) -> list[T] | None:
        """All that the work gave, or None when the process came to nothing."""
        data = self._pipe.read()
        found: list[T] | None = pickle.loads(data) if self._wait() and data else None
        return found

    def end(self) -> None:
        """Make sure that the process is gone."""
        if self._alive:
            os.kill(self._pid, signal.SIGKILL)
            self._wait()
        self._pipe.close()

    def _wait(self) -> bool:
        try:
            status = os.waitpid(self._pid, 0)[1]
        except ChildProcessError:  # somebody ignores SIGCHLD, so that nobody can tell how it ended
            status = 1
        self._alive = False
        return status == 0


def _fork(work: Callable[[], Iterable[T]]) -> _Child[T] | None:
    """The process that does the work, or None where the machine allows no further one."""
    parent, done = os.getpid(), False
    reader, writer = os.pipe()
    try:
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            gc.disable()  # it ends soon, and a collection would touch, and so copy, all that the two share
            done = _answer(work, writer, parent)
    except OSError:
        os.close(reader)
        return None
    finally:
        if os.getpid() != parent:
            os._exit(not done)  # nothing of the first process (its exceptions, its buffers) goes on in this one
        os.close(writer)
    return _Child(pid, os.fdopen(reader, "rb"))


def _answer(work: Callable[[], Iterable[T]], writer: int, parent: int) -> bool:
    """Do the work and write down the answers; whether somebody still wants them."""
    answers = []
    for answer in work():
        if os.getppid() != parent:
            return False
        answers.append(answer)
    with os.fdopen(writer, "wb") as pipe:
        pickle.dump(answers, pipe, pickle.HIGHEST_PROTOCOL)
    return True
