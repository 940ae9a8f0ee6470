"""A store on a queue in a temporary folder, and groups as the engine would have answered them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vime.data.source import RolloutDataSourceWithBuffer
from vime.durable.store import DurableStore
from vime.rollout.pool.store import Task
from vime.sample import ResponseMeta, Status, VersionSpan


def answer(task: Task, version: int = 0, unfinished: bool = False) -> Task:
    """The task's group with two tokens each that follow from prompt and version."""
    for sample in task.group:
        index = sample.index or 0
        meta = ResponseMeta(versions=[VersionSpan(str(version), 0, 2)])
        sample.append_response_tokens(None, [index % 50, version], [-0.1 * index, -0.2], meta_info=meta, text="ab")
        sample.status = Status.ABORTED if unfinished else Status.COMPLETED
        sample.reward = None if unfinished else float(index % 3)
    return task


@pytest.fixture
def straw_args(make_args: Callable[..., Namespace], tmp_path: Path) -> Callable[..., Namespace]:
    """Arguments of a run that saves to, and resumes from, tmp_path / "run"."""

    def make(*flags: str) -> Namespace:
        run = str(tmp_path / "run")
        return make_args("--rollout-data-transport", "straw", "--save", run, "--load", run, *flags)

    return make


@pytest.fixture
def open_durable(straw_args: Callable[..., Namespace]) -> Iterator[Callable[..., DurableStore]]:
    """Open and load a store; the one before is given up as if its process had died, unless it was closed."""
    opened: list[Any] = []

    def make(step: int = -1, *flags: str) -> DurableStore:
        for one in opened:
            one.close()
        opened.clear()
        args = straw_args(*flags)
        store = DurableStore(args, RolloutDataSourceWithBuffer(args))
        opened.append(store)
        store.load(step)
        return store

    yield make
    for one in opened:
        one.close()
