"""What a candidate was made of, as an in-toto statement (v1) with an SLSA provenance predicate (v1). Unsigned, deterministic.

Signing is left to the tool of the place that publishes; it signs exactly these bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from synctool.images.context import Material

TYPE = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:vime-sync:candidate:1"


def statement(
    *,
    tag: str,
    digest: str,
    tree: str,
    commit: str,
    pin: str,
    stack: str,
    platform: str,
    inputs: str,
    builder: str,
    materials: Iterable[Material],
) -> dict[str, Any]:
    """The statement about one image. ``digest`` is the manifest's, ``inputs`` that of the context."""
    return {
        "_type": TYPE,
        "subject": [{"name": tag, "digest": _split(digest)}],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "tree": tree,
                    "platform": platform,
                    "pin": pin,
                    "stack": stack,
                    "inputs": inputs,
                },
                "resolvedDependencies": [
                    {"name": "source", "digest": {"gitCommit": commit, "gitTree": tree}},
                    *({"name": one.name, "digest": _split(one.digest)} for one in materials),
                ],
            },
            "runDetails": {"builder": {"id": "urn:vime-sync:builder", "version": {"tool": builder}}},
        },
    }


def subject_digest(value: dict[str, Any]) -> str:
    """``sha256:...`` of the one subject of a statement, or an empty text if there is none."""
    try:
        return "sha256:" + str(value["subject"][0]["digest"]["sha256"])
    except (KeyError, IndexError, TypeError):
        return ""


def _split(digest: str) -> dict[str, str]:
    algorithm, _, text = digest.partition(":")
    return {algorithm: text}
