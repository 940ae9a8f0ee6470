"""Recorded supports and routes that lie in a queue, read for one micro-batch after another, a few ahead, by threads.

A column's entry is then a `Deferred`. A micro-batch of such entries has a `Later` in the place of its records; whoever scores it takes them, and
they are gone with the graph that used them: every pass over the batch reads anew. At most `window` micro-batches are held beside the one in use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Generic, TypeVar

T = TypeVar("T")
_THREADS = 2


class Deferred(Generic[T]):
    """An entry that is made each time it is asked for."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make

    def get(self) -> T:
        return self._make()


def made(entry: T | Deferred[T]) -> T:
    return entry.get() if isinstance(entry, Deferred) else entry


class Later(Generic[T]):
    """What `make` gives, once asked for or begun ahead. `following`: those that are begun when this one is taken."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._begun: Future[T] | None = None
        self.following: Sequence[Later[T]] = ()

    def begin(self) -> None:
        if self._begun is None:
            self._begun = _threads().submit(self._make)

    def take(self) -> T:
        """Raises what `make` raises."""
        for one in (self, *self.following):
            one.begin()
        begun, self._begun = self._begun, None
        assert begun is not None
        return begun.result()


def link(chain: Sequence[Later[T] | None], window: int) -> None:
    """Let each of `chain` begin the `window` after it. None: it has nothing to read."""
    waiting = [one for one in chain if one is not None]
    for place, one in enumerate(waiting):
        one.following = waiting[place + 1 : place + 1 + window]


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="vime-records")
