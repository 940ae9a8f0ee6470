"""Fixtures of the trainer's tests: tiny checkpoints on disk, one Megatron process for all tests of a session."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # helpers are plain modules, also for spawned ranks

import figures
import tiny_models
import torch

from tests.once import filled_once
from vime.trainer import parallel
from vime.trainer.trainer import Trainer


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    parallel.destroy_process_groups()


def pytest_sessionfinish() -> None:
    figures.write()


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A random Hugging Face checkpoint of each family; qwen2's embeddings are tied."""

    def fill(root: Path) -> None:
        for family in tiny_models.FAMILIES:
            tiny_models.make_checkpoint(root / family, family, tied=family == "qwen2")

    root = filled_once(tmp_path_factory, "hf", fill)
    return {family: root / family for family in tiny_models.FAMILIES}


@pytest.fixture
def new_trainer(checkpoints: dict[str, Path]) -> Callable[..., Trainer]:
    """Make and initialise a trainer of a family, with flags changed by keyword; `started_at` is what `init` returned."""

    def make(family: str = "qwen3", **over: Any) -> Trainer:
        trainer = Trainer(tiny_models.make_args(checkpoints[family], **over))
        trainer.started_at = trainer.init()
        return trainer

    return make
