"""``make image`` makes again what its inputs no longer fit, and keeps the rest. Asked of make, which says what it would do."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize("changed", ["requirements/cpu.txt", "pyproject.toml", None])
def test_wheels_follow_what_names_them(tmp_path: Path, changed: str | None) -> None:
    for kept in ("wheels/.done", "base/index.json"):
        (tmp_path / kept).parent.mkdir()
        (tmp_path / kept).touch()
    told = subprocess.run(
        ["make", "-n", f"IMAGE={tmp_path}", *(["-W", changed] if changed else []), "image"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert (f"touch {tmp_path}/wheels/.done" in told) == (changed is not None)
    assert "image base" not in told
    assert f"--wheels {tmp_path}/wheels" in told
