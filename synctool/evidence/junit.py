"""Reads figures from JUnit XML, as pytest, Go, Java and most CI services write it. The file is untrusted: bounded in size, no document type, no entities."""

from __future__ import annotations

import hashlib
from pathlib import Path
from xml.etree import ElementTree

from synctool.errors import ConfigError, Refused
from synctool.evidence.record import Artifact

MAX_BYTES = 64 << 20


def read_junit(path: Path) -> tuple[dict[str, int], Artifact]:
    """``{"tests", "passed", "failures", "errors", "skipped"}`` counted from the cases, and the file's digest.

    Counted, not taken from the attributes of the suites: those are written by hand in too many tools, and nested suites count twice.

    Raises:
        ConfigError: the file is missing, no XML, or holds no test case.
        Refused: it is too large or declares a document type.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"no JUnit file: {error.strerror}",
            where=str(path),
            hint="let the command write it: pytest --junit-xml FILE",
        ) from None
    if len(data) > MAX_BYTES:
        raise Refused(f"a JUnit file of {len(data):,} bytes, over {MAX_BYTES:,}", where=str(path))
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise Refused("a JUnit file that declares a document type or entities", where=str(path))
    try:
        root = ElementTree.fromstring(data)
    except ElementTree.ParseError as error:
        raise ConfigError(f"not XML: {error}", where=f"{path}:{error.position[0]}") from None
    figures = dict.fromkeys(("tests", "passed", "failures", "errors", "skipped"), 0)
    for case in root.iter("testcase"):
        figures["tests"] += 1
        tags = {child.tag for child in case}
        kind = next((name for tag, name in _KINDS if tag in tags), "passed")
        figures[kind] += 1
    if not figures["tests"]:
        raise ConfigError(
            "a JUnit file without one test case", where=str(path), hint="nothing ran: that is no evidence of anything"
        )
    return figures, Artifact(name=path.name, digest=f"sha256:{hashlib.sha256(data).hexdigest()}")


_KINDS = (("error", "errors"), ("failure", "failures"), ("skipped", "skipped"))
