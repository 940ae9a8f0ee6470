"""Which patch stack the installed vLLM carries. The record is written by ``vime-sync patch apply --site-packages`` inside the package folder."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path

RECORD_NAME = "vime-patch-stack.json"


@dataclass(frozen=True, slots=True)
class InstalledStack:
    """The stack of an installation: ``digest`` is its identity (pin and ordered patches), ``patches`` their names in order."""

    version: str
    digest: str
    patches: tuple[str, ...]

    def describe(self) -> str:
        """For a start-up line."""
        return f"vLLM {self.version} with {len(self.patches)} patches, stack {self.digest[:16]}"


def installed_stack(package: Path | None = None) -> InstalledStack | None:
    """The stack of the vLLM that would be imported (or of a package folder), or None when it is stock or not installed. Imports nothing."""
    if package is None:
        found = importlib.util.find_spec("vllm")
        if found is None or found.origin is None:
            return None
        package = Path(found.origin).parent
    try:
        value = json.loads((package / RECORD_NAME).read_bytes())
        return InstalledStack(value["version"], value["digest"], tuple(row["name"] for row in value["patches"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
