"""``--dry-run`` of the verbs that write one text: standard output is that text to the byte, and nothing is written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

STEPS = """schema = 1
# the small ones
[[step]]
key = "unit"
label = "Unit: {labels} and [brackets] that no console may take for markup"
run = [["python", "-m", "pytest", "-q", "tests/a"]]
minutes = 5
tests = ["tests/a"]
"""
BY_HAND = "steps:\n  - label: Unit # by hand\n    commands:\n      - python -m pytest -q tests/a/test_x.py\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    for name, text in (
        (".buildkite/steps.toml", STEPS), ("tests/a/test_x.py", ""), ("tests/b/test_y.py", ""), ("by-hand.yml", BY_HAND),
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def run(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    ended = subprocess.run(
        [sys.executable, "-m", "synctool", *words, "-C", str(project)], capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    return ended


@pytest.mark.parametrize(
    ("words", "target"),
    [
        (("generate",), ".buildkite/pipeline.yml"),
        (("register", "tests/b/test_y.py", "--step", "unit"), ".buildkite/steps.toml"),
        (("register", "tests/b/test_y.py", "--step", "Unit", "--pipeline", "by-hand.yml"), "by-hand.yml"),
    ],
)
def test_a_dry_run_prints_what_a_real_one_writes(
    project: Path, words: tuple[str, ...], target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    monkeypatch.chdir(project)
    file = project / target
    before = file.read_text() if file.exists() else None
    printed = run(project, "ci", *words, "--dry-run")
    told = json.loads(run(project, "ci", *words, "--dry-run", "--json").stdout)["data"]
    assert (file.read_text() if file.exists() else None) == before
    run(project, "ci", *words)
    assert file.read_text() != before
    assert printed.stdout == told["text"] == file.read_text()
