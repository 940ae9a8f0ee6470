"""Waiting for remote work: every wait has an owner and a deadline, and the death of a child ends it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from vime.errors import EngineError, MachineError, VimeError

#: In which Ray notices that a node is gone, at its defaults: after some missed health checks.
_NODE_SECONDS, _POLL_SECONDS = 45.0, 0.5
_UNREACHED = "its process cannot be reached any more"


class Deaths:
    """Pending references that resolve when a child dies, to a text that says how (None: it was stopped on purpose)."""

    def __init__(self) -> None:
        self._events: dict[Any, str] = {}

    def watch(self, event: Any, child: str) -> None:
        self._events[event] = child

    def forget(self, event: Any) -> None:
        self._events.pop(event, None)

    @property
    def events(self) -> list[Any]:
        return list(self._events)

    def take(self, event: Any) -> str | None:
        """What happened, once; None for a planned end."""
        import ray

        child = self._events.pop(event)
        try:
            reason = ray.get(event)
        except ray.exceptions.RayActorError as error:
            return f"{child}: {_what_ended(error) or 'its process is gone'}"
        return None if reason is None else f"{child}: {reason}"

    def check(self, events: Sequence[Any], seconds: float = 0.0) -> None:
        """Raises EngineError when one of these has happened, or does within `seconds`."""
        import ray

        waiting = [event for event in events if event in self._events]  # the others were told already
        for event in ray.wait(waiting, timeout=seconds)[0] if waiting else ():
            if (reason := self.take(event)) is not None:
                raise died(reason)


def died(reason: str) -> EngineError:
    """Of a child, as `Deaths.take` says it."""
    return EngineError(_with_node(reason), hint="the same command with --load resumes from the last checkpoint")


def wait(
    refs: Sequence[Any],
    *,
    owner: str,
    deadline: float,
    deaths: Deaths | None = None,
    survive: Callable[[str], bool] | None = None,
) -> list[Any]:
    """The results of `refs` in order.

    `owner` says whose work this is, for messages. Raises what the remote call raised when that is a VimeError, EngineError
    when a watched child dies meanwhile and `survive` (given the reason) does not return True, VimeError after `deadline` seconds or
    when the owner itself died.
    """
    import ray

    pending, end = list(refs), time.monotonic() + deadline
    while pending:
        events = deaths.events if deaths is not None else []
        left = end - time.monotonic()
        # Before the results: a dead engine also makes the rollout fail, and its own message says more.
        ready, _ = ray.wait([*events, *pending], num_returns=1, timeout=max(left, 0))
        if not ready:
            raise VimeError(f"{owner} did not finish within {deadline:.0f} s")
        for one in ready:
            if deaths is not None and one in events:
                reason = deaths.take(one)
                if reason is not None and not (survive is not None and survive(reason)):
                    raise died(reason)
            else:
                pending.remove(one)
                # An error of one rank ends the wait: its peers may hang in a collective with it.
                _result(one, owner)
    return [_result(ref, owner) for ref in refs]


def _result(ref: Any, owner: str) -> Any:
    import ray

    try:
        return ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, VimeError):
            raise error.cause from None
        raise
    except ray.exceptions.RayActorError as error:
        raise MachineError(
            f"{owner} died: {_with_node(_what_ended(error) or _first_line(error))}",
            hint="killed by a signal or by the kernel for memory; the same command with --load resumes",
        ) from None


def _what_ended(error: Exception) -> str | None:
    """Of an actor's end: the node that took it along, or that nobody knows yet; None when it died alone."""
    import ray

    if isinstance(error, ray.exceptions.ActorUnavailableError):
        return _UNREACHED
    if "its node has died" not in str(error):
        return None
    found = re.search(r"^\s*ip: (\S+)", str(error), re.MULTILINE)
    return f"node {found[1]} is lost" if found else "its node is lost"


def _with_node(reason: str) -> str:
    """`reason`; where a process cannot be reached Ray gets the time to say that its node is lost, which says more."""
    if not reason.endswith(_UNREACHED):
        return reason
    before, end = _living(), time.monotonic() + _NODE_SECONDS
    while time.monotonic() < end:
        if gone := before.keys() - _living().keys():
            return reason.removesuffix(_UNREACHED) + f"node {before[gone.pop()]} is lost"
        time.sleep(_POLL_SECONDS)
    return reason


def _living() -> dict[str, str]:
    """Addresses of the nodes by id."""
    import ray

    return {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
