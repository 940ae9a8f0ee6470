"""Foreign text in our Markdown: subjects, reasons and names must not format, mention people, link to the wrong project's issues, or close our markers."""

from __future__ import annotations

import re
from collections.abc import Sequence


def plain(text: str) -> str:
    """Text that renders as it is, on one line. Mentions and issue numbers stay readable and link to nobody."""
    text = re.sub(r"\s+", " ", text.encode("utf-8", "replace").decode()).strip()
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*_\[\]|~])", r"\\\1", text)
    return re.sub(r"([@#])(?=\w)", r"\1<!-- -->", text)


def code(text: str) -> str:
    """Text as a code span, whatever it holds."""
    text = (
        re.sub(r"\s+", " ", text.encode("utf-8", "replace").decode())
        .strip()
        .replace("|", "\\|")
        .replace("<!--", "<! --")
    )
    ticks = "`" * (max((len(run) for run in re.findall(r"`+", text)), default=0) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{pad}{text}{pad}{ticks}" if text else ""


def listed(items: Sequence[str], shown: int = 8) -> str:
    """Code spans of the first items; when there are more, how many there are in all."""
    some = ", ".join(code(item) for item in items[:shown])
    return some if len(items) <= shown else f"{some} and others ({len(items):,} in all)"


def link(text: str, url: str) -> str:
    """A link when the address is a plain web address, else the text."""
    return f"[{plain(text)}]({url})" if re.fullmatch(r"https?://[^\s()<>\[\]\"'`|]+", url) else plain(text)


def count(number: int, noun: str, many: str = "") -> str:
    """``1 path``, ``1,200 paths``. ``many`` is the plural where it is not the noun and an s."""
    return f"{number:,} {noun if number == 1 else many or noun + 's'}"
