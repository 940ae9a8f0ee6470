"""The part of an answer that is the answer."""

from __future__ import annotations

import re

_THOUGHT_END = "</think>"


def last_boxed(text: str) -> str | None:
    r"""What stands in the last ``\boxed{...}`` or ``\fbox{...}``, braces balanced; also ``\boxed 7``. None when there is none."""
    starts = list(re.finditer(r"\\(?:boxed|fbox)\b", text))
    for match in reversed(starts):
        rest = text[match.end() :]
        stripped = rest.lstrip()
        if not stripped.startswith("{"):
            word = re.match(r"[^\s$]+", stripped)
            if word and rest[:1].isspace():
                return word[0]
            continue
        depth = 0
        for position, character in enumerate(stripped):
            depth += (character == "{") - (character == "}")
            if depth == 0:
                return stripped[1:position].strip()
    return None


def after_thinking(text: str) -> str:
    """What follows the last closing think tag; the whole text without one."""
    return text.rpartition(_THOUGHT_END)[2]
