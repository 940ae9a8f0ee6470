"""Frames between the desk and its workers: eight bytes of length, then a pickled tuple. The first frame of a worker is the key of the run, so
that nothing is unpickled of anybody who does not have it."""

from __future__ import annotations

import asyncio
import hmac
import pickle
from typing import Any

_LENGTH = 8
_KEY_BYTES = 64


def send(writer: asyncio.StreamWriter, *message: Any) -> None:
    """Put `message` into the line's buffer; whoever holds claims bounds how much there is. To a line that is gone: nothing."""
    if not writer.is_closing():
        payload = pickle.dumps(message)
        writer.write(len(payload).to_bytes(_LENGTH, "big") + payload)


async def receive(reader: asyncio.StreamReader) -> tuple[Any, ...] | None:
    """The next message; None when the other end is gone."""
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH), "big")
        found: tuple[Any, ...] = pickle.loads(await reader.readexactly(length))
        return found
    except (asyncio.IncompleteReadError, OSError):
        return None


def send_key(writer: asyncio.StreamWriter, key: str) -> None:
    writer.write(key.encode().ljust(_KEY_BYTES))


async def check_key(reader: asyncio.StreamReader, key: str) -> bool:
    try:
        return hmac.compare_digest(await reader.readexactly(_KEY_BYTES), key.encode().ljust(_KEY_BYTES))
    except (asyncio.IncompleteReadError, OSError):
        return False
