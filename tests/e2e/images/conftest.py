"""A small project with a pinned and patched engine, as a git repository; a base that holds its environment; a registry where one is installed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from synctool.images.oci import Writer, add_file
from synctool.patches.record import RECORD_NAME
from synctool.patches.stack import load_stack
from tests.preloaded import call
from tests.ssh import configured_ssh
from tests.synctool.patches.conftest import House, git, house, own_cache

__all__ = ["house", "own_cache"]

POLICY = """schema = 1
[upstream]
name = "lantern"
[downstream]
name = "beacon"
[[build_host]]
host = "arm"
platform = "linux/arm64"
names = ["arm.example"]
reason = "the only ARM64 machine"
"""
TEMPLATE = 'FROM x\nLABEL io.vime.tree="{{ tree }}" io.vime.pin="{{ pin }}" io.vime.stack="{{ stack }}"\n'


@dataclass
class Project:
    """A committed project, and what an image of it is made from."""

    house: House
    base: Path
    wheels: Path
    commands: Path

    @property
    def root(self) -> Path:
        return self.house.root

    def run(self, *words: str, code: int = 0) -> dict[str, Any]:
        """A verb as people call it, with what ``ssh`` is replaced as in ``ssh_config``."""
        path = f"{self.commands}{os.pathsep}{os.environ['PATH']}"
        environment = os.environ | {"PATH": path, "GIT_CONFIG_GLOBAL": os.devnull}
        ended = call(*words[:2], "--json", *words[2:], cwd=self.root, env=environment)
        assert ended.returncode == code, (ended.returncode, ended.stdout, ended.stderr)
        assert "Traceback" not in ended.stderr
        envelope: dict[str, Any] = json.loads(ended.stdout) if ended.stdout else {"error": ended.stderr}
        return envelope

    def build(self, output: Path, *words: str, code: int = 0) -> dict[str, Any]:
        inputs = ("--base", str(self.base), "--wheels", str(self.wheels), "--output", str(output))
        return self.run("image", "build", *inputs, *words, code=code)

    def ssh_config(self, text: str) -> None:
        configured_ssh(self.commands, text)

    def commit(self, message: str) -> None:
        git(self.root, "add", "-A")
        git(self.root, "commit", "-q", "--allow-empty", "-m", message)


@pytest.fixture
def project(house: House, tmp_path: Path) -> Project:
    house.add("one.patch", {"engine/core.py": b"def step(x):\n    return x\n"})
    git(house.root, "init", "-q", "-b", "main")
    (house.root / ".gitignore").write_text("/scratch/\n")
    (house.root / "docker").mkdir()
    (house.root / "docker" / "Dockerfile.j2").write_text(TEMPLATE)
    (house.root / "vime-sync.toml").write_text(POLICY)
    git(house.root, "config", "user.name", "Bea Lichtmann")
    git(house.root, "config", "user.email", "bea@example.org")
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "tool-1-py3-none-any.whl").write_bytes(b"wheel")
    (tmp_path / "commands").mkdir()
    made = Project(house, tmp_path / "base", tmp_path / "wheels", tmp_path / "commands")
    made.commit("The project")
    stack = load_stack(house.stack)

    def fill(archive: tarfile.TarFile) -> None:
        record = json.dumps({"digest": stack.digest}).encode()
        add_file(archive, f"opt/vime/lib/python3.11/site-packages/engine/{RECORD_NAME}", record)
        add_file(
            archive, "opt/vime/lib/python3.11/site-packages/tool-1.dist-info/METADATA", b"Name: tool\nVersion: 1\n"
        )
        add_file(archive, "opt/vime/src/gone.py", b"")

    writer = Writer(made.base)
    layer = writer.layer(fill)
    labels = {"io.vime.pin": "engine==1.0", "io.vime.stack": stack.digest}
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": [layer.digest]},
    }
    writer.image(config, [layer])
    return made


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """``host:port`` of a registry that keeps its data in the test's folder."""
    program = shutil.which("docker-registry") or shutil.which("registry")
    if program is None or shutil.which("skopeo") is None:
        pytest.skip("needs a registry and skopeo; on Debian: apt-get install docker-registry skopeo")
    config = tmp_path / "registry.yml"
    config.write_text(
        "version: 0.1\nlog: {level: info}\nhttp: {addr: '127.0.0.1:0'}\n"
        f"storage: {{filesystem: {{rootdirectory: '{tmp_path / 'registry'}'}}}}\n"
    )
    server = subprocess.Popen(
        [program, "serve", str(config)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    try:
        assert server.stderr is not None
        address = next(
            found[1] for line in server.stderr if (found := re.search(r"listening on (127\.0\.0\.1:\d+)", line))
        )
        yield address
    finally:
        server.kill()
        server.communicate()
