"""JSON text that is always valid UTF-8, and comes back as it was.

Paths and messages are decoded with ``surrogateescape``. The lone surrogates that this leaves have no UTF-8 form: they are written as ``\\udcXX``.
"""

from __future__ import annotations

import json
import re
from typing import Any

_SURROGATE = re.compile("[\ud800-\udfff]")


def dumps(value: Any, **options: Any) -> str:
    """``json.dumps`` with characters as they are, but for lone surrogates. ``json.loads`` gives the same value back."""
    text = json.dumps(value, ensure_ascii=False, **options)
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
