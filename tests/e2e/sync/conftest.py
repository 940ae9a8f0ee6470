"""The demo's upstream and fork, generated once and copied for each test."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from examples.demo_fork import generate
from tests.once import filled_once
from tests.preloaded import call

EXCLUDE = """
[[exclude]]
pr = 112
reason = "a Photon source has no tank that could leak"
owner = "Bea Lichtmann"
"""


@dataclass
class Fork:
    """A downstream clone with its policy committed and upstream fetched."""

    folder: Path
    upstream: Path

    def git(self, *words: str) -> str:
        done = subprocess.run(["git", *words], cwd=self.folder, capture_output=True, check=True)
        return done.stdout.decode("utf-8", "surrogateescape").strip()

    def sync(self, *words: str, expect: int | None = 0) -> subprocess.CompletedProcess[str]:
        done = call(*words, "-C", str(self.folder))
        assert "Traceback" not in done.stderr, done.stderr
        assert expect is None or done.returncode == expect, (words, done.returncode, done.stdout, done.stderr)
        return done

    def data(self, *words: str, expect: int | None = 0) -> dict[str, Any]:
        answer = json.loads(self.sync(*words, "--json", expect=expect).stdout)
        assert answer["schema"] == "vime-sync/1"
        return answer["data"]

    def refs(self) -> str:
        return self.git("for-each-ref", "--format=%(objectname) %(refname)")

    def snapshot(self) -> str:
        """Everything a user could lose: refs, HEAD, index bytes, and each file of the work tree with its mode."""
        digest = hashlib.sha256(self.refs().encode())
        digest.update((self.folder / ".git/HEAD").read_bytes())
        digest.update((self.folder / ".git/index").read_bytes())
        for path in sorted(self.folder.rglob("*")):
            if ".git" in path.relative_to(self.folder).parts or path.is_dir():
                continue
            digest.update(str(path).encode("utf-8", "surrogateescape"))
            digest.update(str(path.readlink()).encode() if path.is_symlink() else path.read_bytes())
            digest.update(str(path.lstat().st_mode).encode())
        return digest.hexdigest()


def make(root: Path) -> None:
    upstream, downstream, baseline = generate.build(root)
    fork = Fork(downstream, upstream)
    fork.git("config", "user.name", "Bea Lichtmann")
    fork.git("config", "user.email", "bea@example.org")
    fork.git("fetch", "-q", str(upstream), "main:refs/vime-sync/upstream/main")
    fork.sync("init", "--baseline", baseline, "--upstream-url", str(upstream))
    with (downstream / "vime-sync.toml").open("a") as file:
        file.write(EXCLUDE)
    fork.git("add", "-A")
    fork.git("commit", "-q", "-m", "Policy")


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled_once(tmp_path_factory, "demo", make)


@pytest.fixture
def fork(made: Path, tmp_path: Path) -> Fork:
    shutil.copytree(made, tmp_path / "fork", symlinks=True)
    return Fork(tmp_path / "fork/beacon", made / "lantern")
