"""The built site, once a run."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.once import filled_once

REPOSITORY = Path(__file__).resolve().parents[3]


def build(folder: Path) -> None:
    """Both languages; a warning fails the build."""
    for language in ("en", "zh"):
        done = subprocess.run(
            [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d", str(folder / f".trees-{language}"),
             str(REPOSITORY / "docs" / language), str(folder / language)],
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled_once(tmp_path_factory, "site", build)
