"""Git's binary patch data: base-85 lines of deflated literals and deltas."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from synctool.errors import Refused

#: Decoded size of one binary side.
MAX_BINARY_BYTES = 64 << 20

_HEAD = re.compile(rb"(literal|delta) (\d{1,10})$")


@dataclass(frozen=True, slots=True)
class BinaryDelta:
    """One direction of a binary change: the whole new content (``literal``), or instructions to make it from the old (``delta``)."""

    kind: str
    data: bytes

    def apply(self, old: bytes) -> bytes:
        """The new content.

        Raises:
            Refused: the delta was made for other content or is damaged.
        """
        if self.kind == "literal":
            return self.data
        return _apply_delta(old, self.data)


def read_binary(
    lines: list[bytes], at: int, fail: Callable[..., Exception]
) -> tuple[tuple[BinaryDelta, BinaryDelta | None], int]:
    """Read the forward and, if there is one, the backward side that start at ``lines[at]``. Returns them and the next position."""
    forward, at = _read_side(lines, at, fail)
    backward = None
    if at < len(lines) and _HEAD.match(lines[at]):
        backward, at = _read_side(lines, at, fail)
    return (forward, backward), at


def _read_side(lines: list[bytes], at: int, fail: Callable[..., Exception]) -> tuple[BinaryDelta, int]:
    head = _HEAD.match(lines[at]) if at < len(lines) else None
    if head is None:
        raise fail("binary patch without 'literal' or 'delta'", at)
    size = int(head[2])
    if size > MAX_BINARY_BYTES:
        raise fail(f"binary data of {size:,} bytes is over the bound of {MAX_BINARY_BYTES:,}", at)
    start, packed = at, bytearray()
    at += 1
    while at < len(lines) and lines[at]:
        line = lines[at]
        letter = line[:1]
        count = letter[0] - 64 if letter.isupper() else letter[0] - 96 + 26
        if not letter.isalpha() or len(line) - 1 != (count + 3) // 4 * 5:
            raise fail("a line of binary data is malformed", at)
        try:
            chunk = base64.b85decode(line[1:])
        except ValueError as error:
            raise fail("a line of binary data is malformed", at) from error
        packed += chunk[:count]
        at += 1
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(bytes(packed), size + 1)
    except zlib.error as error:
        raise fail("binary data does not inflate", start) from error
    if len(data) != size or not inflater.eof:
        raise fail(f"binary data does not have the {size:,} bytes it states", start)
    return BinaryDelta(head[1].decode(), data), at + 1


def _apply_delta(old: bytes, delta: bytes) -> bytes:
    position = 0

    def number() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = delta[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    try:
        if number() != len(old):
            raise Refused("binary delta was made for other content")
        size = number()
        if size > MAX_BINARY_BYTES:
            raise Refused(f"binary delta makes {size:,} bytes, over the bound of {MAX_BINARY_BYTES:,}")
        made = bytearray()
        while position < len(delta):
            code = delta[position]
            position += 1
            if not code & 0x80:
                if not code:
                    raise Refused("binary delta is damaged")
                made += delta[position : position + code]
                position += code
                continue
            start = length = 0
            for bit in range(7):
                if code >> bit & 1:
                    if bit < 4:
                        start |= delta[position] << 8 * bit
                    else:
                        length |= delta[position] << 8 * (bit - 4)
                    position += 1
            length = length or 0x10000
            if start + length > len(old) or len(made) + length > size:
                raise Refused("binary delta is damaged")
            made += old[start : start + length]
    except IndexError as error:
        raise Refused("binary delta is damaged") from error
    if len(made) != size:
        raise Refused("binary delta is damaged")
    return bytes(made)
