"""Finds an installed package and the distribution that owns it, without importing anything."""

from __future__ import annotations

import email.parser
import importlib.machinery
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from synctool.errors import Refused, UsageError
from synctool.patches.swap import interrupted


@dataclass(frozen=True, slots=True)
class Target:
    """An installed package: its folder, and the distribution that owns it (name and version None for a bare copy)."""

    package: Path
    info: Path | None
    distribution: str | None
    version: str | None


def find_target(import_name: str, site: Path | None = None, python: str | None = None) -> Target:
    """The package in a site-packages folder, or in the environment of an interpreter (this one by default). Nothing is imported.

    Raises:
        UsageError: it is not there.
        Refused: it is a link (an editable install): patch its source instead.
    """
    if site is None:
        site = _site_of(import_name, python)
    site = site.resolve()
    if site.name == import_name and (site / "__init__.py").is_file():
        site = site.parent
    package = site / import_name
    if package.is_symlink():
        raise Refused(
            "the installed package is a symbolic link", where=str(package), hint="patch the folder it points to"
        )
    if not (package / "__init__.py").is_file() and interrupted(package) is None:
        raise UsageError(
            f"{import_name} is not installed there",
            where=str(site),
            hint="name a site-packages folder: --site-packages PATH",
        )
    for info in sorted(site.glob("*.dist-info")):
        listing = info / "RECORD"
        if listing.is_file() and f"\n{import_name}/__init__.py," in "\n" + listing.read_text(errors="replace"):
            metadata = email.parser.Parser().parsestr((info / "METADATA").read_text(errors="replace"), headersonly=True)
            return Target(package, info, metadata["Name"], metadata["Version"])
    return Target(package, None, None, None)


def _site_of(import_name: str, python: str | None) -> Path:
    if python is None or Path(python) == Path(sys.executable):
        spec = importlib.machinery.PathFinder.find_spec(import_name)
        origin = spec.origin if spec else None
    else:
        code = "import sys, importlib.machinery as m; s = m.PathFinder.find_spec(sys.argv[1]); print(s.origin if s else '')"
        try:
            done = subprocess.run([python, "-c", code, import_name], capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UsageError(f"the interpreter does not start: {error}", where=python) from error
        origin = done.stdout.strip()
    if not origin:
        raise UsageError(
            f"{import_name} is not installed",
            where=python or sys.executable,
            hint="name a site-packages folder, or --python",
        )
    return Path(origin).parent.parent
