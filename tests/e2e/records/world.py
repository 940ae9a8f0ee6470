"""The two recorded syncs on generated repositories: an upstream in slime's words, its fork in vime's, an engine release with six patches on it."""

from __future__ import annotations

import datetime
import difflib
import hashlib
import io
import json
import os
import subprocess
import tarfile
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from examples.demo_fork.generate import Builder
from synctool.cli.app import main
from tests.ssh import configured_ssh

RANGE = (2420, 2421, 2422, 2423, 2424, 2425, 2426, 2427, 2428, 2429, 2430, 2431, 2433, 2434, 2437)
STACKED = 2432
ENGINE_FILES = 2533
ARCHIVE = "vllm-0.9.9.tar.gz"
LATEST = "sha256:" + hashlib.sha256(b"latest").hexdigest()

POLICY = """schema = 1
[upstream]
name = "slime"
url = "https://github.com/THUDM/slime"
branch = "main"
baseline = "{baseline}"
[downstream]
name = "vime"
url = "https://github.com/lamps/vime"
branch = "main"
[[family]]
from = "slime"
to = "vime"
[[family]]
from = "SGLang"
to = "vLLM"
[[owner]]
paths = ["/tests/test_binary_response.py"]
owner = "exclude"
reason = "binary responses exist in SGLang only"
[[owner]]
paths = ["/.buildkite/", "/patches/", "/.gitignore"]
owner = "native"
reason = "our own"
[[exclude]]
pr = 2424
reason = "Ascend is not a platform of this fork"
owner = "Bea Lichtmann"
[[neutral]]
paths = ["/.buildkite/", "/sync_manifests/"]
reason = "model and runtime code are elsewhere"
[[require]]
name = "cpu-regressions"
reason = "the CPU suite"
[[require]]
name = "ci"
reason = "the whole pipeline on AMD64"
[[require]]
name = "image-arm64"
reason = "the second platform"
[[build_host]]
host = "arm-builder"
platform = "linux/arm64"
names = ["arm.example"]
reason = "the only ARM64 machine"
"""

PATCHES = {
    "vllm-pull_weights.patch": ("pull-checkpoint transport", "Pending", "aoshen02/vllm#45"),
    "vllm.patch": ("weight-version propagation; terminal metrics kept", "Submitted [vllm#53199]", "vllm#53199; vllm#55708; vllm#47933"),
    "vllm-score-centering.patch": ("sampling-mask transport, exact top-p extension", "Pending", "aoshen02/vllm#83"),
    "vllm-pd-request-metrics.patch": ("prefill/decode request metrics", "Pending", "aoshen02/vllm#29"),
    "vllm-inflight-queue-diagnostics.patch": ("queue diagnostics", "Submitted [vllm#55274]", "vllm#55274"),
    "vllm-aux-output-reset.patch": ("backport of a merged fix absent from the pin", "Backport [vllm#59060]", "vllm#59060"),
}  # fmt: skip

SUITE = "import pytest\n\n\n@pytest.mark.parametrize('n', range({n}))\ndef test_{name}(n):\n    assert n * n >= n or n < 0\n"


class Told(NamedTuple):
    """What a verb answered."""

    returncode: int
    stdout: str
    stderr: str


@dataclass
class World:
    """The fork's clone, with upstream's objects in it."""

    folder: Path
    upstream: Path
    archive: Path
    environment: dict[str, str] = field(default_factory=dict)

    def git(self, *words: str) -> str:
        done = subprocess.run(["git", *words], cwd=self.folder, capture_output=True, check=True)
        return done.stdout.decode("utf-8", "surrogateescape").strip()

    def sync(self, *words: str, expect: int | None = 0) -> Told:
        """Call a verb in this process: sixty interpreters would take longer than the work."""
        group = 2 if words[0] in ("evidence", "patch") else 1
        out, err = io.StringIO(), io.StringIO()
        before = dict(os.environ)
        os.environ.update(self.environment)
        try:
            with redirect_stdout(out), redirect_stderr(err):
                main([*words[:group], "-C", str(self.folder), *words[group:]])
        except SystemExit as ended:
            told = Told(int(ended.code or 0), out.getvalue(), err.getvalue())
        finally:
            os.environ.clear()
            os.environ.update(before)
        assert "Traceback" not in told.stderr, told
        assert expect is None or told.returncode == expect, (words, told)
        return told

    def data(self, *words: str, expect: int | None = 0) -> dict[str, Any]:
        group = 2 if words[0] in ("evidence", "patch") else 1
        return json.loads(self.sync(*words[:group], "--json", *words[group:], expect=expect).stdout)["data"]

    def ssh(self, config: str) -> None:
        commands = self.folder.parent / "commands"
        commands.mkdir()
        configured_ssh(commands, config)
        self.environment["PATH"] = f"{commands}{os.pathsep}{os.environ['PATH']}"

    def commit(self, message: str, **files: str) -> str:
        for name, text in files.items():
            path = self.folder / name.replace("__", "/")
            path.write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)
        return self.git("rev-parse", "HEAD")

    def build(self, number: int, state: str, head: str, jobs: list[dict[str, Any]] | None = None) -> Path:
        """A file as Buildkite's REST API gives one build."""
        path = self.folder.parent / f"build-{number}.json"
        began = datetime.datetime(2026, 11, 28) + datetime.timedelta(minutes=number)  # a later number is a later time
        ended = began + datetime.timedelta(seconds=30)
        made = {
            "id": f"018f-{number}",
            "number": number,
            "state": state,
            "commit": head,
            "web_url": f"https://buildkite.com/lamps/vime/builds/{number}",
            "created_at": f"{began.isoformat(timespec='milliseconds')}Z",
            "finished_at": None if state == "running" else f"{ended.isoformat(timespec='milliseconds')}Z",
            "jobs": jobs or [],
        }
        path.write_text(json.dumps(made))
        return path


def job(name: str, state: str = "passed", **more: Any) -> dict[str, Any]:
    """One job of a build."""
    return {
        "id": name,
        "type": "script",
        "name": name,
        "state": state,
        "exit_status": 0 if state == "passed" else 1,
        **more,
    }


def _upstream(folder: Path) -> tuple[Builder, str]:
    up = Builder(folder, "Ada Lampwright", 1_700_000_000)
    up.write("slime/__init__.py", '"""slime drives SGLang."""\n')
    up.write("slime/engine.py", "".join(f"SGLANG_KNOB_{n} = {n}\n\n\n" for n in range(40)))
    up.write("docs/en/guide.md", "# Guide\n\nslime runs on SGLang.\n")
    up.write("docs/zh/guide.md", "# 指南\n\nslime 在 SGLang 上运行。\n")
    baseline = up.commit("slime 0.2 (#2400)")
    return up, baseline


def _range(up: Builder) -> None:
    """The range sync's changes, then the one of the stacked sync."""
    for place, number in enumerate(RANGE):
        if number == 2424:
            up.write("slime/ascend.py", '"""Ascend devices."""\n')
        else:
            up.replace("slime/engine.py", f"SGLANG_KNOB_{place} = {place}\n", f"SGLANG_KNOB_{place} = {place + 1000}\n")
        up.commit(f"Turn knob {place} @team (#{number})" if number != 2424 else "Ascend support (#2424)")
    up.write("slime/replay.py", '"""Replays archived slime records."""\n')
    up.write("docs/en/replay.md", "# Replay\n\nslime replays archives.\n")
    up.write("tests/test_binary_response.py", "# SGLang only\n")
    up.write("tests/test_replay.py", SUITE.format(n=126, name="replay"))
    up.commit(f"Train-only replay (#{STACKED})")


def _engine(folder: Path) -> tuple[Path, str, dict[str, bytes]]:
    """A release archive of 2,533 Python files, its SHA-256, and its content."""
    files = {f"vllm/part_{n // 100:02}/module_{n:04}.py": f"VALUE = {n}\n".encode() for n in range(ENGINE_FILES)}
    path = folder / ARCHIVE
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(f"vllm-0.9.9/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path, hashlib.sha256(path.read_bytes()).hexdigest(), files


def _patch(number: int, purpose: str, status: str, origin: str, files: dict[str, bytes]) -> str:
    name = f"vllm/part_00/module_{number:04}.py"
    old, new = files[name].decode(), f"VALUE = {number}\nPATCHED = True\n"
    header = (
        f"Description: {purpose}\nAuthor: vime contributors\nOrigin: {origin}\nForwarded: {origin}\nUpstream-Status: {status}\n"
        "Removal-Condition: the pin has it\nRegression-Test: tests/test_engine.py::test_it\n---\n"
    )
    lines = difflib.unified_diff(old.splitlines(True), new.splitlines(True), f"a/{name}", f"b/{name}")
    return f"{header}diff --git a/{name} b/{name}\n" + "".join(lines)


def at(root: Path) -> World:
    """The world that ``make`` made there."""
    return World(root / "vime", root / "slime", root / ARCHIVE)


def make(root: Path) -> None:
    """Both repositories, the archive, and the fork's policy and patch stack, committed on its main branch."""
    up, baseline = _upstream(root / "slime")
    down = Builder(root / "vime", "Bea Lichtmann", 1_710_000_000)
    for path in sorted((root / "slime").rglob("*")):
        if path.is_file() and ".git" not in path.parts:
            text = path.read_text().replace("SGLANG", "VLLM").replace("SGLang", "vLLM").replace("slime", "vime")
            down.write(str(path.relative_to(root / "slime")).replace("slime", "vime"), text)
    archive, digest, files = _engine(root)
    scratch = Builder(root / "engine", "x", 1_700_000_000)
    for name, data in files.items():
        scratch.write(name, data)
    scratch.git("add", "-A")
    tree = scratch.git("write-tree")
    folder = "patches/vllm/0.9.9"
    down.write(
        f"{folder}/pin.toml",
        f'schema = 1\npackage = "vllm"\nversion = "0.9.9"\nimport_name = "vllm"\n\n[archive]\nname = "{archive.name}"\nsha256 = "{digest}"\n'
        f'size = {archive.stat().st_size}\nfiles = {ENGINE_FILES}\ntree = "{tree}"\n',
    )
    down.write(f"{folder}/series", "\n".join(PATCHES) + "\n")
    for number, (name, facts) in enumerate(PATCHES.items()):
        down.write(f"{folder}/{name}", _patch(number, *facts, files))
    down.write("tests/test_regressions.py", SUITE.format(n=292, name="regression"))
    down.write("tests/test_recovery.py", SUITE.format(n=2, name="recovery"))
    down.write(".buildkite/pipeline.yml", "steps:\n  - command: pip install x[y]\n")
    down.write(".gitignore", "__pycache__/\n.pytest_cache/\nbuild/\n")
    down.write("vime-sync.toml", POLICY.format(baseline=baseline))
    down.commit("Fork slime and run it on vLLM")
    _range(up)
    world = at(root)
    world.git("config", "user.name", "Bea Lichtmann")
    world.git("config", "user.email", "bea@example.org")
    world.git("fetch", "-q", str(up.folder), "main:refs/vime-sync/upstream/main")


def through(world: World, number: int) -> str:
    """The upstream commit of a pull request."""
    return world.git("log", "-1", "--format=%H", "--grep", f"(#{number})$", "refs/vime-sync/upstream/main")
