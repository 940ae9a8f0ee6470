"""A run's processes on two nodes of a real Ray cluster: addresses, folders, and the loss of a node."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.nodes import OPEN, Network, network
from vime.cluster import processes

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def two() -> Iterator[Network]:
    with network(2) as found:
        for node in found.nodes:
            node.start(found.nodes[0], cpus=1)
        yield found


def test_processes_know_their_nodes_and_the_loss_of_one_is_told_in_a_line(
    two: Network, make_args: Callable[..., Namespace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, other = two.nodes
    monkeypatch.setenv("RAY_ADDRESS", head.ray)  # what weights travel over follows from it
    save, run_id = str(tmp_path / "run"), f"two-{os.getpid()}"
    args = make_args("--rollout-data-transport", "straw", "--save", save, "--run-id", run_id)
    (tmp_path / "args").write_bytes(pickle.dumps(args))
    driver = subprocess.Popen(
        [*head.prefix, sys.executable, "-m", "tests.vime.cluster.on_node", str(tmp_path / "args")],
        cwd=ROOT,
        env=os.environ | OPEN | {"VIME_RUNTIME_DIR": str(tmp_path / "registry")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdin is not None
    assert driver.stdout is not None
    try:
        said = [driver.stdout.readline().strip() for _ in range(3)]
        assert said == [
            f"trainer on {head.address}, engines on {other.address}",
            "folders are shared",
            str([(head.address, run_id), (other.address, run_id)]),
        ]
        other.kill()
        out, _ = driver.communicate("go on\n", timeout=200)
        # Ray prints the log of the raylet that ended, too.
        assert [line for line in out.splitlines() if line.startswith("error")] == [
            f"error: engine 0: node {other.address} is lost",
            f"error: actor died: node {other.address} is lost",
            f"error: node {other.address} is lost, and a device of this run with it",
        ]
        assert driver.wait(60) == 0
    finally:
        driver.kill()
        driver.wait()
        processes.sweep(run_id, grace=0)
    assert processes.processes(run_id) == []
    assert not list((Path(save) / "rollout_data").iterdir())  # nothing of the probe is left
