"""Removes secrets from text before it leaves the machine: logs, bug bundles, evidence."""

from __future__ import annotations

import re

_PATTERNS = (
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^/\s:@]+(:[^/\s@]*)?@"), r"\1***@"),
    (re.compile(r"\b(gh[pousr]_|github_pat_|glpat-|hf_|bkua_|sk-|xox[abprs]-)[A-Za-z0-9_\-]{8,}"), r"\1***"),
    (re.compile(r"(?i)\b(authorization|proxy-authorization)(\s*[:=]\s*)(bearer|basic|token)?\s*\S+"), r"\1\2***"),
    (
        re.compile(
            r"(?i)\b([\w.-]*(?:token|secret|passw(?:or)?d|api[_-]?key|access[_-]?key))(\s*[:=]\s*)['\"]?[^\s'\",;]+"
        ),
        r"\1\2***",
    ),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.S), "*** private key ***"),
)


def redact(text: str) -> str:
    """The text without credentials in URLs, well-known token forms, authorization headers, ``token=...`` pairs and private keys."""
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text
