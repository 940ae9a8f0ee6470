"""What all tests share: how property tests run, and how `make unit` spreads tests over workers (pytest-xdist)."""

from __future__ import annotations

import functools
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# No deadline: a busy machine is no fault of the code. `make test` draws the same examples every time, so that a change is judged by what it
# changed; the nightly run sets HYPOTHESIS_PROFILE=explore and draws new ones.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# A job that a shell put into the background ignores Ctrl-C, and so would every process that a test starts and then interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@functools.cache
def _has_engine(path: Path) -> bool:
    """Whether a file has tests of real engines. Told by its text: pytest-xdist's controller, which hands out tests, sees no marks."""
    return "mark.engine" in path.read_text()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """For workers: the engines' tests come first, since they take longest; then files with slow tests. The order of all others stays."""
    if hasattr(config, "workerinput"):
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: 0 if _has_engine(item.path) else 1 if item.path in slow else 2)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist loadfile``, all files with engines go to one worker, one after the other: each engine fills the machine alone."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class OneEngine(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "engines" if _has_engine(config.rootpath / file) else file

    config.option.loadscopereorder = False  # keeps our order
    return OneEngine(config, log)
