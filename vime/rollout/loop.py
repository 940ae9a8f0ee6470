"""One event loop a process, in a thread of its own, so that connections outlive a single rollout."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def run_async(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run `coroutine` on the rollout loop and wait for it. Not from the loop itself. A KeyboardInterrupt cancels it."""
    future = asyncio.run_coroutine_threadsafe(coroutine, _running())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def call_on_loop(function: Callable[..., T], *args: Any) -> T:
    """`function(*args)` in the loop's thread, between its tasks. Not from the loop itself."""

    async def call() -> T:
        return function(*args)

    return run_async(call())


def _running() -> asyncio.AbstractEventLoop:
    global _loop
    with _lock:
        if _loop is None or _loop.is_closed():
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="vime-rollout", daemon=True).start()
        return _loop
