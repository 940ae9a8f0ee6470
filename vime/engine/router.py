"""Which engine gets the next request. One interface; in this process, or vLLM's router as a process of its own."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from vime.errors import EngineError


class Router(Protocol):
    """Spreads requests over the engines it knows."""

    def acquire(self, session_id: str | None) -> str:
        """The base URL for a new request. Raises EngineError when there is no engine."""
        ...

    def release(self, url: str) -> None:
        """The request that `acquire` sent to `url` has ended, however it did."""
        ...

    def engines(self) -> list[str]:
        """URLs of the engines themselves, for calls that go to each (abort)."""
        ...

    def set_engines(self, urls: Iterable[str]) -> None:
        """These are the engines from now on."""
        ...


#: Picks one of the URLs, given the requests in flight at each and the session of the new one.
Policy = Callable[[dict[str, int], str | None], str]


@dataclass
class LocalRouter:
    """A router in the calling process; it knows exactly what is in flight because it is the only one who sends."""

    policy: Policy
    _load: dict[str, int] = field(default_factory=dict)

    def acquire(self, session_id: str | None) -> str:
        if not self._load:
            raise EngineError("no engine is left to ask")
        url = self.policy(self._load, session_id)
        self._load[url] += 1
        return url

    def release(self, url: str) -> None:
        if url in self._load:  # it may have been replaced meanwhile
            self._load[url] -= 1

    def engines(self) -> list[str]:
        return list(self._load)

    def set_engines(self, urls: Iterable[str]) -> None:
        self._load = {url: self._load.get(url, 0) for url in urls}


@dataclass
class ExternalRouter:
    """A router process at `url` spreads; the engines behind it are still known, since aborts go to each."""

    url: str
    _engines: list[str] = field(default_factory=list)

    def acquire(self, session_id: str | None) -> str:
        return self.url

    def release(self, url: str) -> None:
        return None

    def engines(self) -> list[str]:
        return list(self._engines)

    def set_engines(self, urls: Iterable[str]) -> None:
        self._engines = list(urls)


def least_loaded(load: dict[str, int], session_id: str | None) -> str:
    """The engine with the fewest requests in flight; the first of equals."""
    return min(load, key=lambda url: load[url])


def consistent_hash(load: dict[str, int], session_id: str | None) -> str:
    """The turns of one session meet the same engine, whose prefix cache is warm; highest-random-weight hashing, so that a
    lost engine moves only its own sessions. Requests without a session go to the least loaded."""
    if session_id is None:
        return least_loaded(load, None)
    return max(load, key=lambda url: hashlib.blake2b(f"{url} {session_id}".encode(), digest_size=8).digest())


def power_of_two(load: dict[str, int], session_id: str | None) -> str:
    """The less loaded of two random engines."""
    pair = random.sample(list(load), min(2, len(load)))
    return min(pair, key=lambda url: load[url])


def uniform(load: dict[str, int], session_id: str | None) -> str:
    return random.choice(list(load))


class RoundRobin:
    """Each in turn."""

    def __init__(self) -> None:
        self._next = 0

    def __call__(self, load: dict[str, int], session_id: str | None) -> str:
        urls = list(load)
        url = urls[self._next % len(urls)]
        self._next += 1
        return url


def local_router(policy: str) -> LocalRouter:
    """A router in this process for ``--router-policy``. Raises EngineError for one that only vllm-router has."""
    policies: dict[str, Policy] = {
        "least_loaded": least_loaded,
        "consistent_hash": consistent_hash,
        "power_of_two": power_of_two,
        "random": uniform,
        "round_robin": RoundRobin(),
    }
    if policy not in policies:
        raise EngineError(
            f"--router-policy {policy} needs vllm-router",
            hint=f"pip install vllm-router, or take one of {', '.join(policies)}",
        )
    return LocalRouter(policies[policy])
