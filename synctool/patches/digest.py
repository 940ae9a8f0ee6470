"""The identity of a patch stack: what evidence, images and the runtime bind to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

#: Part of what is hashed, so that a change of the scheme changes every digest.
SCHEME = "vime-patch-stack/1"


def stack_digest(package: str, version: str, archive_sha256: str, patches: Iterable[tuple[str, str]]) -> str:
    """SHA-256 (hex) over the pin and the ordered ``(name, sha256 of the patch file's bytes)`` pairs.

    Computed over canonical JSON (sorted keys, no blanks, ASCII). A changed byte of a patch, its header included, another order or another
    pin gives another digest.
    """
    value = {
        "scheme": SCHEME,
        "package": package,
        "version": version,
        "archive_sha256": archive_sha256,
        "patches": [[name, sha256] for name, sha256 in patches],
    }
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def patch_sha256(data: bytes) -> str:
    """SHA-256 (hex) of a patch file."""
    return hashlib.sha256(data).hexdigest()
