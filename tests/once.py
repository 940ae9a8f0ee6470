"""Folders that are filled once a run, whichever of pytest-xdist's workers asks first."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def filled_once(factory: pytest.TempPathFactory, name: str, fill: Callable[[Path], object]) -> Path:
    """The folder ``name`` of this run, filled by ``fill``. The workers' own temporary folders lie side by side in the run's; a run
    without workers has its own alone. Nobody may change the folder: tests copy what they change.
    """
    own = factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / f"once-{name}"
    done = folder.with_suffix(".done")
    with FileLock(folder.with_suffix(".lock")):
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a worker that failed or died at it
            folder.mkdir()
            fill(folder)
            done.touch()
    return folder
