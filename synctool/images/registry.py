"""A registry, seen through skopeo: read a tag's digest, push a layout without changing a byte of its manifest."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from synctool.errors import EnvironmentFailure, UsageError
from synctool.redact import redact

_REPOSITORY = re.compile(r"[a-z0-9.-]+(?::[0-9]+)?(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)+")
_LOOPBACK = re.compile(r"(?:127\.0\.0\.1|localhost)(?::[0-9]+)?/")
_ABSENT = ("manifest unknown", "name unknown", "repository name not known", "name_unknown", "manifest_unknown")


class Registry(Protocol):
    """One repository of a registry."""

    def digest(self, tag: str) -> str | None:
        """Digest of a tag's manifest, None if there is no such tag."""

    def push(self, layout: Path, tag: str) -> None:
        """Copy the one image of a layout to a tag, its digest kept."""


@dataclass(frozen=True)
class Skopeo:
    """``repository`` is ``host[:port]/name``. Plain HTTP is used with this machine only."""

    repository: str

    def __post_init__(self) -> None:
        if not _REPOSITORY.fullmatch(self.repository):
            raise UsageError(f"not a repository: {self.repository!r}", hint="host[:port]/name, without a tag")
        if shutil.which("skopeo") is None:
            raise EnvironmentFailure("skopeo is not installed", hint="apt-get install skopeo")

    @property
    def _tls(self) -> str:
        return "false" if _LOOPBACK.match(self.repository) else "true"

    def digest(self, tag: str) -> str | None:
        ended = subprocess.run(
            ["skopeo", "inspect", "--raw", f"--tls-verify={self._tls}", f"docker://{self.repository}:{tag}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        if ended.returncode == 0:
            return "sha256:" + hashlib.sha256(ended.stdout).hexdigest()
        said = ended.stderr.decode(errors="replace")
        # Only a plain "there is none" is an answer: a registry that cannot be read must not pass for an empty one.
        if any(word in said.lower() for word in _ABSENT):
            return None
        raise EnvironmentFailure(f"cannot read {self.repository}:{tag}: {redact(_last(said))}")

    def push(self, layout: Path, tag: str) -> None:
        ended = subprocess.run(
            [
                "skopeo",
                "copy",
                "--preserve-digests",
                f"--dest-tls-verify={self._tls}",
                f"oci:{layout}",
                f"docker://{self.repository}:{tag}",
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        if ended.returncode:
            raise EnvironmentFailure(
                f"push to {self.repository}:{tag} failed: {redact(_last(ended.stderr.decode(errors='replace')))}"
            )


def _last(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "no output"
