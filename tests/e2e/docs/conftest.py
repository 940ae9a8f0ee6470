"""The built site, once a session."""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both languages, built afresh; a warning fails the build."""
    folder = tmp_path_factory.mktemp("site")
    for language in ("en", "zh"):
        done = subprocess.run(
            [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d", str(folder / f".trees-{language}"),
             str(REPOSITORY / "docs" / language), str(folder / language)],
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
    return folder
