"""A small package with a pin, a stack folder and an installed copy; the cache is the test's own."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import os
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from synctool.cli.app import main
from synctool.git import Repo
from synctool.patches.archive import file_sha256
from synctool.patches.store import learn_archive

FILES = {
    "engine/__init__.py": b"",
    "engine/core.py": b"".join(b"def step_%02d(x):\n    return x + %d\n\n\n" % (n, n) for n in range(12)),
    "engine/sub/util.py": b"A = 1\nB = 2\nC = 3\n",
    "engine/data.bin": bytes(range(256)),
    "engine/last.py": b"X = 1\nY = 2",  # no final newline
    "README.md": b"# engine\n",
}


def git(
    folder: Path, *words: str, stdin: bytes | None = None, check: bool = True
) -> subprocess.CompletedProcess[bytes]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | {
        "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@x",
        "GIT_COMMITTER_NAME": "C", "GIT_COMMITTER_EMAIL": "c@x", "GIT_AUTHOR_DATE": "1700000000 +0000", "GIT_COMMITTER_DATE": "1700000000 +0000",
    }  # fmt: skip
    return subprocess.run(["git", *words], cwd=folder, env=environment, input=stdin, capture_output=True, check=check)


def make_archive(path: Path, files: dict[str, bytes], top: str = "engine-1.0") -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(f"{top}/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def write_pin(folder: Path, archive: Path, version: str = "1.0", extra: str = "") -> None:
    tree, files = learn_archive(archive)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pin.toml").write_text(
        f'schema = 1\npackage = "engine"\nversion = "{version}"\nimport_name = "engine"\n\n[archive]\nname = "{archive.name}"\n'
        f'sha256 = "{file_sha256(archive)}"\nsize = {archive.stat().st_size}\nfiles = {files}\ntree = "{tree}"\n{extra}'
    )
    if not (folder / "series").exists():
        (folder / "series").write_text("")


HEADER = """Description: {subject}
Forwarded: https://example.org/pull/1
Upstream-Status: Submitted [https://example.org/pull/1]
Removal-Condition: the pin contains pull 1
Regression-Test: tests/test_it.py::test_it
---
"""


def diff_of(before: dict[str, bytes], after: dict[str, bytes], folder: Path, *options: str) -> bytes:
    """The diff that git itself makes between two sets of files."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q")
    for files in (before, after):
        git(folder, "rm", "-rq", "--cached", "--ignore-unmatch", ".")
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
            git(folder, "update-index", "--add", "--", name)
        git(folder, "commit", "-q", "--allow-empty", "-m", "x")
    return git(folder, "diff", "--full-index", "--binary", "--no-renames", *options, "HEAD~1", "HEAD").stdout


@dataclass
class House:
    """A project folder with a stack, and where its parts are."""

    root: Path
    stack: Path
    archive: Path
    files: dict[str, bytes]
    count: int = 0

    def add(self, name: str, edit: dict[str, bytes | None], subject: str = "a change", header: str = HEADER) -> bytes:
        """Add a patch on top that makes the given contents, by git's own diff."""
        before = dict(self.files)
        after = {k: v for k, v in (before | edit).items() if v is not None}
        self.count += 1
        body = diff_of(before, after, self.root / "scratch" / str(self.count))
        data = header.format(subject=subject).encode() + body
        (self.stack / name).write_bytes(data)
        with (self.stack / "series").open("a") as series:
            series.write(f"{name}\n")
        self.files = after
        return data

    def run(self, *words: str, code: int | None = 0) -> dict[str, Any]:
        """Run a patch verb with --json and return the envelope."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as ended:
            main(["patch", words[0], "--json", "-C", str(self.root), *words[1:]])
        assert code is None or ended.value.code == code, (ended.value.code, out.getvalue())
        envelope: dict[str, Any] = json.loads(out.getvalue())
        assert envelope["exit_code"] == ended.value.code
        return envelope

    def install(self) -> Path:
        """A site-packages folder that holds the package as a wheel would install it. One file differs from the pin, as a build's own would."""
        site = self.root / "site"
        rows = []
        for name, data in {**FILES, "engine/_version.py": b"v = 1\n"}.items():
            if not name.startswith("engine/"):
                continue
            path = site / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{name},sha256={digest},{len(data)}")
        info = site / "engine_cpu-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: engine-cpu\nVersion: 1.0+cpu\n")
        (info / "RECORD").write_text("".join(f"{row}\n" for row in [*rows, "engine_cpu-1.0.dist-info/RECORD,,"]))
        return site


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))


@pytest.fixture
def house(tmp_path: Path) -> House:
    root = tmp_path / "project"
    stack = root / "patches" / "engine" / "1.0"
    links = tmp_path / "links"
    links.mkdir()
    archive = make_archive(links / "engine-1.0.tar.gz", {**FILES, "engine/_version.py": b"v = 0\n"})
    write_pin(stack, archive)
    return House(root, stack, archive, {**FILES, "engine/_version.py": b"v = 0\n"})


@pytest.fixture
def bare(tmp_path: Path) -> Repo:
    folder = tmp_path / "bare.git"
    folder.mkdir()
    git(folder, "init", "-q", "--bare")
    return Repo.open(folder)
