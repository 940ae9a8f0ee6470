"""Which engine gets the next request. One interface; in this process, or vLLM's router as a process of its own."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import random
import sys
import urllib.parse
import urllib.request
from argparse import Namespace
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from vime.engine.net import hold_port
from vime.engine.process import EngineProcess
from vime.errors import EngineError

_START_ATTEMPTS = 3
_START_SECONDS = 60.0
_CALL_SECONDS = 10.0
#: What vllm-router 0.1 offers of ours. `least_loaded` stays here: this process knows exactly what is in flight.
_ROUTER_POLICIES = ("cache_aware", "power_of_two", "consistent_hash", "random", "round_robin")


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


class RouterProcess:
    """vllm-router in a process of its own, started with the first engines; aborts still go to each engine."""

    def __init__(self, policy: str, balance_threshold: int, log: Path) -> None:
        self._flags = ["--policy", policy, "--balance-abs-threshold", str(balance_threshold)]
        self._log = log
        self._process: EngineProcess | None = None
        self._engines: list[str] = []

    def acquire(self, session_id: str | None) -> str:
        if self._process is None or not self._engines:
            raise EngineError("no engine is left to ask")
        return self._process.url

    def release(self, url: str) -> None:
        return None  # the router counts for itself

    def engines(self) -> list[str]:
        return list(self._engines)

    def set_engines(self, urls: Iterable[str]) -> None:
        wanted = list(urls)
        if self._process is None:
            self._process = self._start(wanted)
        else:
            for gone in set(self._engines) - set(wanted):
                self._tell("remove_worker", gone)
            for new in set(wanted) - set(self._engines):
                self._tell("add_worker", new)
        self._engines = wanted

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()

    def _start(self, urls: list[str]) -> EngineProcess:
        command = [sys.executable, "-m", "vime.engine.router_server", *self._flags, "--worker-urls", *urls]
        for attempt in range(_START_ATTEMPTS):
            process = EngineProcess(command, os.environ, hold_port("127.0.0.1"), self._log)
            try:
                process.wait_healthy(_START_SECONDS)
            except EngineError:
                if attempt + 1 == _START_ATTEMPTS:
                    raise
            else:
                return process
        raise AssertionError("unreachable")

    def _tell(self, route: str, engine: str) -> None:
        assert self._process is not None
        query = urllib.parse.urlencode({"url": engine})
        request = urllib.request.Request(f"{self._process.url}/{route}?{query}", b"", method="POST")
        try:
            urllib.request.urlopen(request, timeout=_CALL_SECONDS).close()
        except OSError as error:
            raise EngineError(f"the router refused {route} of {engine}: {error}", where=self._process.url) from error


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


def open_router(args: Namespace, log: str) -> Router:
    """To the policy's engines: vllm-router where it is installed, knows the policy and there are engines to choose from; else our own. `log`: its
    file in the run's folder."""
    found = importlib.util.find_spec("vllm_router") is not None
    if found and args.model_groups[0].count > 1 and args.router_policy in _ROUTER_POLICIES:
        path = Path(args.run_dir).resolve() / "logs" / log
        return RouterProcess(args.router_policy, args.router_balance_abs_threshold, path)
    return local_router(args.router_policy)
