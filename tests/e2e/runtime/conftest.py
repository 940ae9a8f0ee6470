"""A model, prompts and a registry of runs of their own for the tests of a file, and drivers that end with their test."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.runtime.driver import GROUP, PROMPTS, ROOT, Driver
from vime.cluster import processes
from vime.toy import model, words

ROWS = 2048


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A random model of the toy's shape, prompts, and a registry of its own for `vime ps`."""
    folder = tmp_path_factory.mktemp("runs")
    model.write_model(folder / "start", seed=0)
    stream = words.words(1)
    words.write_rows(folder / "train.jsonl", [next(stream) for _ in range(ROWS)])
    # Short: Ray's sockets are below it.
    registry = tempfile.TemporaryDirectory(prefix="vt-", dir="/tmp", ignore_cleanup_errors=True)
    with registry, pytest.MonkeyPatch.context() as patch:
        patch.setenv("VIME_RUNTIME_DIR", registry.name)
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("PYTHONPATH", str(ROOT))  # runs may name functions of tests
        yield folder


@pytest.fixture
def start(work: Path) -> Iterator[Callable[..., Driver]]:
    drivers: list[Driver] = []
    run_ids: list[str] = []

    def begin(run_id: str, steps: int, *more: str) -> Driver:
        flags = {
            "--hf-checkpoint": work / "start",
            "--prompt-data": work / "train.jsonl",
            "--input-key": "prompt",
            "--label-key": "answer",
            "--rm-type": "reverse_word",
            "--num-rollout": steps,
            "--rollout-batch-size": PROMPTS,
            "--n-samples-per-prompt": GROUP,
            "--rollout-max-response-len": 8,
            "--micro-batch-size": 8,
            "--lr": 1e-3,
            "--device": "cpu",
            "--parity-threshold": 1e-5,
            "--run-id": run_id,
        }
        driver = Driver([str(part) for pair in flags.items() for part in pair] + list(more))
        drivers.append(driver)
        run_ids.append(run_id)
        return driver

    yield begin
    for driver in drivers:
        driver.process.kill()
        driver.process.wait()
    for run_id in run_ids:
        processes.sweep(run_id, grace=0)
