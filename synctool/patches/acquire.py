"""Gets a release's source archive: from the package index that pip is configured for, without building anything.

pip's own configuration decides (``index-url``, ``extra-index-url``, ``find-links``, certificates), so that a mirror or an air-gapped index works
unchanged.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

from synctool.cli.terminal import Progress, silent
from synctool.errors import EnvironmentFailure, Refused, UsageError
from synctool.redact import redact

if TYPE_CHECKING:
    import requests

    from synctool.patches.pin import Pin

CHUNK = 1 << 20
SUFFIXES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


@dataclass(frozen=True, slots=True)
class IndexConfig:
    """Where pip would look: index pages in order, plain folders or pages of links, and the certificate bundle."""

    indexes: tuple[str, ...]
    find_links: tuple[str, ...] = ()
    certificates: str | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A source archive on offer. ``sha256`` as the index states it, which nobody relies on."""

    name: str
    url: str
    sha256: str | None = None


def pip_config() -> IndexConfig:
    """Read pip's configuration, environment variables included, through pip itself."""
    from pypi_simple import PYPI_SIMPLE_ENDPOINT

    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True)
    settings: dict[str, str] = {}
    for line in listed.stdout.splitlines() if listed.returncode == 0 else ():
        key, equals, value = line.partition("=")
        section, _, name = key.strip().rpartition(".")
        if equals and section in ("global", "download", ":env:"):
            try:
                settings[name.replace("_", "-")] = str(
                    ast.literal_eval(value)
                )  # later sections, and the environment, win
            except (ValueError, SyntaxError):
                continue
    for name in ("index-url", "extra-index-url", "find-links", "cert", "no-index"):
        from_environment = os.environ.get("PIP_" + name.upper().replace("-", "_"))
        if from_environment is not None:
            settings[name] = from_environment
    indexes = [settings.get("index-url") or PYPI_SIMPLE_ENDPOINT, *settings.get("extra-index-url", "").split()]
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        indexes = []
    return IndexConfig(tuple(indexes), tuple(settings.get("find-links", "").split()), settings.get("cert"))


def find_sdist(package: str, version: str, config: IndexConfig) -> Candidate:
    """The source archive of one version, from the first place that has it.

    Raises:
        EnvironmentFailure: no place has it, or none answers.
    """
    tried: list[str] = []
    for place in (*config.find_links, *config.indexes):
        try:
            for candidate in _candidates(place, package, config):
                if _matches(candidate.name, package, version):
                    return candidate
            tried.append(f"{redact(place)}: has no source archive of it")
        except Exception as error:  # any transport, page or file error: the next place may do
            tried.append(f"{redact(place)}: {redact(str(error))[:200]}")
    raise EnvironmentFailure(
        f"no source archive of {package} {version} was found",
        where="; ".join(tried) or "no index is configured",
        hint="name an archive or an unpacked folder with --source PATH",
    )


def _matches(filename: str, package: str, version: str) -> bool:
    from pypi_simple import parse_filename

    if not filename.endswith(SUFFIXES):
        return False
    try:
        project, found, kind = parse_filename(filename, project_hint=package)
    except ValueError:
        return False
    return kind == "sdist" and found == version and _plain(project) == _plain(package)


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _candidates(place: str, package: str, config: IndexConfig) -> Iterator[Candidate]:
    """Files on offer at an index, a folder, or a page of links."""
    from pypi_simple import ProjectPage, PyPISimple

    local = _local(place)
    if local is not None:
        if local.is_dir() and (page := local / _plain(package) / "index.html").is_file():
            found = ProjectPage.from_html(package, page.read_text("utf-8"), base_url=page.resolve().as_uri())
            yield from (Candidate(p.filename, p.url, p.digests.get("sha256")) for p in found.packages)
        elif local.is_dir():
            yield from (Candidate(p.name, p.resolve().as_uri()) for p in sorted(local.iterdir()))
        return
    with _session(config) as session, PyPISimple(place, session=session) as client:
        for package_file in client.get_project_page(package, timeout=(10, 60)).packages:
            yield Candidate(package_file.filename, package_file.url, package_file.digests.get("sha256"))


def _local(place: str) -> Path | None:
    parts = urlsplit(place)
    if parts.scheme == "file":
        return Path(url2pathname(parts.path))
    return Path(place) if not parts.scheme else None


@contextmanager
def _session(config: IndexConfig) -> Iterator[requests.Session]:
    import requests

    with requests.Session() as session:  # honours proxies and netrc by itself
        if config.certificates:
            session.verify = config.certificates
        yield session


def download(
    candidate: Candidate, target: Path, *, size: int | None, config: IndexConfig, progress: Progress = silent
) -> None:
    """Fetch an archive into ``target``. At most ``size`` bytes are taken (2 GiB when unknown).

    Raises:
        EnvironmentFailure: the transfer failed.
        Refused: there is more than ``size``.
    """
    local = _local(candidate.url)
    bound = size if size is not None else 2 << 30
    done = 0

    def take(chunks: Iterator[bytes]) -> None:
        nonlocal done
        with target.open("wb") as file:
            for chunk in chunks:
                done += len(chunk)
                if done > bound:
                    raise Refused(f"archive is larger than the {bound:,} bytes of the pin", where=redact(candidate.url))
                file.write(chunk)
                progress(done, bound, candidate.name)

    try:
        if local is not None:
            with local.open("rb") as source:
                take(iter(lambda: source.read(CHUNK), b""))
            return
        with _session(config) as session:
            answer = session.get(candidate.url, stream=True, timeout=(10, 60))
            answer.raise_for_status()
            take(answer.iter_content(CHUNK))
    except OSError as error:  # requests' errors are OSErrors too
        raise EnvironmentFailure(
            f"download failed: {redact(str(error))[:300]}", where=redact(candidate.url.partition("#")[0])
        ) from error


def download_pinned(pin: Pin, target: Path, progress: Progress = silent) -> None:
    """Download the archive of a pin from pip's index to ``target``, no larger than the pin says. Its hash is for the caller to check.

    Raises:
        EnvironmentFailure, Refused: as ``find_sdist`` and ``download``.
    """
    config = pip_config()
    download(find_sdist(pin.package, pin.version, config), target, size=pin.archive.size, config=config, progress=progress)


def parse_source(text: str | None) -> Path | None:
    """``--source``: None for the index or git of the pin, else an existing archive or folder.

    Raises:
        UsageError: the path does not exist.
    """
    if text is None:
        return None
    path = Path(text).expanduser()
    if not path.exists():
        raise UsageError("no such archive or folder", where=text)
    return path
