"""Path names as git writes them in patches: plain, or C-quoted when they hold control, quote or non-ASCII bytes."""

from __future__ import annotations

_LETTERS = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}
_BACK = {value: letter for letter, value in _LETTERS.items()}


def unquote(text: bytes) -> tuple[str, bytes] | None:
    """Read a C-quoted name at the start of ``text`` (which begins with a double quote).

    Returns the name, decoded as UTF-8 with surrogate escapes, and what follows the closing quote; None when the quoting is malformed.
    """
    raw = bytearray()
    position = 1
    while position < len(text):
        byte = text[position]
        position += 1
        if byte == 0x22:
            return raw.decode("utf-8", "surrogateescape"), text[position:]
        if byte != 0x5C:
            raw.append(byte)
            continue
        letter = text[position : position + 1].decode("latin-1")
        if letter in _LETTERS and letter:
            raw.append(_LETTERS[letter])
            position += 1
            continue
        digits = text[position : position + 3]
        if len(digits) != 3 or any(d not in b"01234567" for d in digits) or digits[0] > ord("3"):
            return None
        raw.append(int(digits, 8))
        position += 3
    return None


def quote(name: str) -> str:
    """The name as it stands in a patch header: unchanged if harmless, else C-quoted. Inverse of ``unquote``."""
    raw = name.encode("utf-8", "surrogateescape")
    if all(0x20 <= byte < 0x7F and byte not in (0x22, 0x5C) for byte in raw):
        return name
    parts = []
    for byte in raw:
        if byte in _BACK:
            parts.append("\\" + _BACK[byte])
        elif 0x20 <= byte < 0x7F:
            parts.append(chr(byte))
        else:
            parts.append(f"\\{byte:03o}")
    return '"' + "".join(parts) + '"'
