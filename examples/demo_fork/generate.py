"""Generates the demo's two repositories: *lantern*, an upstream that burns Kerosene, and *beacon*, its fork that runs on Photon.

The history holds each case a sync must handle: squash merges, a merge commit, a change without a number, a revert pair, a rename, a
mode change, a symlink, a binary, CRLF, a non-ASCII path, an edit to a file that the fork deleted, an excluded change and one that depends on it,
a change the fork has ported already, a conflict with an overlay, documents in two languages. Dates are fixed, so ids are the same on each machine.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

FILES: dict[str, str | bytes] = {
    "README.md": "# Lantern\n\nLantern runs jobs on a Kerosene burner. See docs/en/guide.md.\n",
    "lantern/__init__.py": '"""Lantern: jobs on Kerosene."""\n\nfrom lantern.runner import KeroseneRunner\n\n__all__ = ["KeroseneRunner"]\n',
    "lantern/runner.py": '''"""Runs jobs on one Kerosene burner."""

import time

from lantern.jobs import Job

POLL_SECONDS = 0.5


class KeroseneRunner:
    """Feeds jobs to a burner and waits for their light."""

    def __init__(self, tank_size):
        self.tank_size = tank_size
        self.waiting = []

    def submit(self, job, priority=0):
        """Queue one job."""
        self.waiting.append((priority, job))
        return len(self.waiting)

    def step(self):
        """Run the next job, if there is one."""
        self.waiting.sort(key=lambda pair: -pair[0])
        priority, job = self.waiting.pop(0)
        return job.run()

    def drain(self):
        """Run all jobs."""
        results = []
        while self.waiting:
            results.append(self.step())
            time.sleep(POLL_SECONDS)
        return results
''',
    "lantern/jobs.py": '''"""What a job is."""


class Job:
    """A named piece of work."""

    def __init__(self, name, work):
        self.name = name
        self.work = work

    def run(self):
        """Do the work and return its result."""
        return self.work()
''',
    "lantern/options.py": '''"""Command line of lantern."""

import argparse


def parser():
    """All options, those of the Kerosene burner included."""
    result = argparse.ArgumentParser("lantern")
    result.add_argument("--kerosene-tank-size", type=int, default=4)
    result.add_argument("--kerosene-wick", default="flat")
    return result
''',
    "lantern/compat.py": '"""Names that lantern 0.1 had."""\n\nfrom lantern.runner import KeroseneRunner as Burner\n\n__all__ = ["Burner"]\n',
    "tools/legacy_report.py": '"""Prints the old report."""\n\nprint("lantern report")\n',
    "tests/test_runner.py": """from lantern.jobs import Job
from lantern.runner import KeroseneRunner


def test_submit_counts():
    runner = KeroseneRunner(tank_size=4)
    assert runner.submit(Job("one", lambda: 1)) == 1
""",
    "scripts/start.sh": "#!/bin/sh\nexec python -m lantern --kerosene-tank-size 8\n",
    "windows/launch.bat": b"@echo off\r\nrem starts lantern\r\npython -m lantern\r\n",
    "assets/flame.bin": bytes(range(256)),
    "docs/en/guide.md": """# Guide

Install lantern and fill the tank.

## Options

Use `--kerosene-tank-size` to set the size of the tank.

```bash
python -m lantern --kerosene-tank-size 8
```

## History

Lantern began as [a pull request](https://example.org/lantern/lantern/pull/1).
""",
    "docs/zh/guide.md": """# 指南

安装 lantern 并加满油箱。

## 选项

使用 `--kerosene-tank-size` 设置油箱大小。

## 历史

lantern 始于[一个合并请求](https://example.org/lantern/lantern/pull/1)。
""",
}


class Builder:
    """Writes commits into one repository with git itself, at fixed times."""

    def __init__(self, folder: Path, person: str, start: int) -> None:
        self.folder, self.person, self.clock = folder, person, start
        folder.mkdir(parents=True)
        self.git("init", "-q", "-b", "main")

    def git(self, *words: str) -> str:
        self.clock += 60
        when = f"{self.clock} +0000"
        email = f"{self.person.lower().replace(' ', '.')}@example.org"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | {
            "GIT_AUTHOR_NAME": self.person, "GIT_AUTHOR_EMAIL": email, "GIT_AUTHOR_DATE": when,
            "GIT_COMMITTER_NAME": self.person, "GIT_COMMITTER_EMAIL": email, "GIT_COMMITTER_DATE": when,
            "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1",
        }  # fmt: skip
        command = ["git", "-c", "core.autocrlf=false", "-c", "core.hooksPath=/dev/null", *words]
        return subprocess.run(
            command, cwd=self.folder, env=environment, check=True, capture_output=True, text=True
        ).stdout.strip()

    def write(self, path: str, content: str | bytes) -> None:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())

    def replace(self, path: str, old: str, new: str) -> None:
        text = (self.folder / path).read_bytes().decode()
        assert old in text, (path, old)
        self.write(path, text.replace(old, new, 1))

    def commit(self, message: str) -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)
        return self.git("rev-parse", "HEAD")


def upstream_start(folder: Path) -> tuple[Builder, str]:
    """lantern at the moment the fork began."""
    builder = Builder(folder, "Ada Lampwright", 1_700_000_000)
    for path, content in FILES.items():
        builder.write(path, content)
    return builder, builder.commit("Lantern 0.2 (#100)")


def upstream_changes(up: Builder) -> None:
    """The 21 changes that the fork has not seen yet, oldest first."""
    up.replace(
        "lantern/runner.py", "        self.waiting = []\n", "        self.waiting = []\n        self.limit = 64\n"
    )
    up.commit("Limit the queue of the runner (#101)")

    up.git("checkout", "-q", "-b", "zh-docs")
    up.replace("docs/zh/guide.md", "加满油箱。", "加满油箱，然后点火。")
    up.commit("zh: say that the flame must be lit")
    up.git("checkout", "-q", "main")
    up.git(
        "merge", "-q", "--no-ff", "-m", "Merge pull request #102 from lantern/zh-docs\n\nzh: light the flame", "zh-docs"
    )

    up.replace("docs/en/guide.md", "fill the tank.", "fill the tank, then light it.")
    up.commit("Guide: light the flame")

    up.replace("lantern/runner.py", "POLL_SECONDS = 0.5", "POLL_SECONDS = 0.05")
    fast = up.commit("Poll faster (#103)")
    up.replace("lantern/runner.py", "POLL_SECONDS = 0.05", "POLL_SECONDS = 0.5")
    up.commit(f'Revert "Poll faster (#103)" (#104)\n\nThis reverts commit {fast}.')

    up.git("mv", "lantern/jobs.py", "lantern/job_queue.py")
    up.replace("lantern/job_queue.py", "What a job is.", "What a job is, and how jobs queue.")
    for path in ("lantern/runner.py", "tests/test_runner.py"):
        up.replace(path, "from lantern.jobs import Job", "from lantern.job_queue import Job")
    up.commit("Rename jobs to job_queue (#105)")

    (up.folder / "scripts/start.sh").chmod(0o755)
    up.commit("Make start.sh executable (#106)")

    (up.folder / "docs/latest").symlink_to("en")
    up.commit("Link the latest documents (#107)")

    up.write("assets/flame.bin", bytes(reversed(range(256))))
    up.commit("A brighter flame (#108)")

    up.replace("windows/launch.bat", "python -m lantern\r\n", "python -m lantern --kerosene-wick round\r\n")
    up.commit("Round wick on Windows (#109)")

    up.write("docs/en/größe.md", "# Sizes\n\nA tank of 4 lasts for one night of Kerosene.\n")
    up.commit("Explain tank sizes (#110)")

    up.replace("tools/legacy_report.py", "lantern report", "lantern report, revised")
    up.commit("Revise the legacy report (#111)")

    up.write(
        "lantern/leak_probe.py",
        '"""Probes a Kerosene tank for leaks, through its serial port."""\n\nPORT = "/dev/ttyS0"\n',
    )
    up.commit("Probe the tank for leaks (#112)")

    up.replace(
        "lantern/runner.py", "def submit(self, job, priority=0):", "def submit(self, job, timeout=30.0, priority=0):"
    )
    up.commit("Jobs can time out (#113)")

    for path, heading, text in (
        (
            "docs/en/guide.md",
            "## History",
            "## Wicks\n\nKerosene burns evenly with `--kerosene-wick round`.\n\n## History",
        ),
        ("docs/zh/guide.md", "## 历史", "## 灯芯\n\n使用 `--kerosene-wick round` 时 Kerosene 燃烧均匀。\n\n## 历史"),
    ):
        up.replace(path, heading, text)
    up.commit("Guide: wicks, in both languages (#114)")

    up.write(
        "lantern/metrics.py",
        '"""Counts what a KeroseneRunner did."""\n\n\ndef summary(runner):\n    """One line about a runner."""\n'
        '    return f"kerosene: {len(runner.waiting)} waiting"\n',
    )
    up.write(
        "tests/test_metrics.py",
        "from lantern.metrics import summary\n\n\ndef test_summary():\n    assert callable(summary)\n",
    )
    up.commit("Summarise a runner (#115)")

    up.replace(
        "lantern/runner.py",
        "        priority, job =",
        "        if not self.waiting:\n            return None\n        priority, job =",
    )
    up.commit("Do nothing when no job waits (#116)")

    (up.folder / "lantern/compat.py").unlink()
    up.commit("Drop the names of 0.1 (#117)")

    up.replace("lantern/leak_probe.py", 'PORT = "/dev/ttyS0"', 'PORT = "/dev/ttyS1"')
    up.commit("Leak probe: second port (#118)")

    up.replace("lantern/runner.py", "import time\n", "import logging\nimport time\n")
    up.replace(
        "lantern/runner.py",
        "        return job.run()",
        '        logging.info("kerosene burns for %s", job.name)\n        return job.run()',
    )
    up.commit("Log each job (#119)")

    up.replace(
        "lantern/options.py",
        "    return result\n",
        '    result.add_argument("--kerosene-leak-check", action="store_true")\n    return result\n',
    )
    up.commit("Add an option for leak checks (#120)")


def downstream(folder: Path) -> Builder:
    """beacon: lantern at the baseline in Photon's words, with what the fork adds and leaves out."""
    down = Builder(folder, "Bea Lichtmann", 1_710_000_000)
    words = (
        ("KEROSENE", "PHOTON"),
        ("Kerosene", "Photon"),
        ("kerosene", "photon"),
        ("Lantern", "Beacon"),
        ("lantern", "beacon"),
    )
    for path, content in FILES.items():
        target = path
        for old, new in words:
            target = target.replace(old, new)
        if isinstance(content, str):
            content = content.replace("--kerosene-tank-size", "--photon-buffer-size")
            for old, new in words:
                content = content.replace(old, new)
            # the fork keeps links to upstream's history as they were
            content = content.replace("example.org/beacon/beacon/pull/", "example.org/lantern/lantern/pull/")
        elif path.endswith(".bat"):
            content = content.replace(b"lantern", b"beacon")
        down.write(target, content)
    down.commit("Fork lantern 0.2 and run it on Photon")

    down.write("README.md", "# Beacon\n\nBeacon runs jobs on light. It follows Lantern; this page is our own.\n")
    down.write(
        "beacon/photon_health.py",
        '"""Asks a Photon source how it is."""\n\n\ndef healthy(source):\n    return source.lumen > 0\n',
    )
    (down.folder / "tools/legacy_report.py").unlink()
    down.commit("Own README and health check; drop the legacy report")

    down.replace("beacon/runner.py", "import time\n", "import threading\nimport time\n")
    down.replace("beacon/runner.py", "def submit(self, job, priority=0):", "def submit(self, job, priority=1):")
    down.replace(
        "beacon/runner.py",
        "        self.waiting = []\n",
        "        self.lock = threading.Lock()\n        self.waiting = []\n",
    )
    down.commit("Photon sources are shared: lock the runner, prefer new jobs")

    down.replace(
        "beacon/runner.py",
        "        priority, job =",
        "        if not self.waiting:\n            return None\n        priority, job =",
    )
    down.commit("Do nothing when no job waits\n\nTaken ahead of the sync, because it crashed.\n\nUpstream-PR: #116")
    return down


def build(folder: Path) -> tuple[Path, Path, str]:
    """Both repositories below ``folder``; returns upstream, downstream and the baseline commit."""
    up, baseline = upstream_start(folder / "lantern")
    down = downstream(folder / "beacon")
    upstream_changes(up)
    return up.folder, down.folder, baseline


if __name__ == "__main__":
    import sys

    print(*build(Path(sys.argv[1] if len(sys.argv) > 1 else "demo-fork")), sep="\n")
