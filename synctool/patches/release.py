"""Learns the pin of another release of a pinned package."""

from __future__ import annotations

import re
from pathlib import Path

from synctool.cli.terminal import progress
from synctool.errors import Refused, UsageError
from synctool.patches.acquire import download, find_sdist, parse_source, pip_config
from synctool.patches.archive import file_sha256
from synctool.patches.pin import Archive, Pin, load_pin
from synctool.patches.store import PinnedSource, learn_archive, open_pin


def learn_pin(
    pin: Pin, version: str, scratch: Path, *, source: str | None = None, quiet: bool = False
) -> tuple[Pin, Path]:
    """The pin of ``version`` and its archive, from the index (then in ``scratch``) or ``source``.

    Raises:
        Refused: the index states another hash than the archive has.
        EnvironmentFailure: it cannot be had.
    """
    path = parse_source(source)
    name = path.name if path is not None else ""
    if path is None:
        config = pip_config()
        candidate = find_sdist(pin.package, version, config)
        name, path = candidate.name, scratch / candidate.name
        with progress(f"getting {candidate.name}", quiet=quiet) as update:
            download(candidate, path, size=None, config=config, progress=update)
        if candidate.sha256 is not None and file_sha256(path) != candidate.sha256:
            raise Refused("the archive differs from the hash that the index states", where=candidate.name)
    tree, files = learn_archive(path)
    archive = Archive(
        name=re.sub(r"[^A-Za-z0-9._+-]", "_", name),
        sha256=file_sha256(path),
        size=path.stat().st_size,
        files=files,
        tree=tree,
    )
    git = pin.git
    if git is not None:
        # The tag is the old one with the version in its place; commit and tree are not known before someone fetches it.
        tag = git.tag.replace(pin.version, version) if git.tag else None
        git = git.model_copy(update={"tag": tag, "commit": None, "tree": None})
    return pin.model_copy(update={"version": version, "archive": archive, "git": git}), path


def open_release(
    pin: Pin,
    version: str,
    folder: Path,
    scratch: Path,
    *,
    source: str | None = None,
    offline: bool = False,
    quiet: bool = False,
) -> PinnedSource:
    """The verified source of another release: by the pin in ``folder`` if there is one, else by a pin learned now.

    Raises:
        EnvironmentFailure: it cannot be had.
        UsageError: offline, and nothing is pinned or named.
    """
    given = parse_source(source)
    if (folder / "pin.toml").is_file():
        known = load_pin(folder / "pin.toml")
        with progress(f"getting {known.label}", quiet=quiet) as update:
            return open_pin(known, source=given, offline=offline, progress=update)
    if offline and given is None:
        raise UsageError(
            f"{version} is not pinned",
            where=str(folder),
            hint="write its pin with 'vime-sync patch pin VERSION', or give --new-source",
        )
    learned, archive = learn_pin(pin, version, scratch, source=source, quiet=quiet)
    return open_pin(learned, source=archive)
