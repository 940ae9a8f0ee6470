"""What all tests share: how property tests run, and how `make unit` spreads tests over workers (pytest-xdist)."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import settings

# No deadline: a busy machine is no fault of the code. `make test` draws the same examples every time, so that a change is judged by what it
# changed; the nightly run sets HYPOTHESIS_PROFILE=explore and draws new ones.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """For workers: the engines' tests come first and go to one worker, one after the other, since each fills the machine alone and they
    take longest; then the files with slow tests. The order of all others stays.
    """
    if not hasattr(config, "workerinput"):
        return
    for item in items:
        if item.get_closest_marker("engine"):
            item.add_marker(pytest.mark.xdist_group("engine"))
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: 0 if item.get_closest_marker("engine") else 1 if item.path in slow else 2)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist loadgroup``, tests without a group stay together by file, as their module's fixtures want."""
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class ByFile(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return str(super()._split_scope(nodeid)).partition("::")[0]

    config.option.loadscopereorder = False  # keeps our order
    return ByFile(config, log)
