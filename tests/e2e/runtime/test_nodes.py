"""A run over several nodes of a Ray cluster that is there already, and what the loss of one leaves: a clear line, all data, a resume."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.runtime.driver import GROUP, PROMPTS, ROOT, Driver, named, nothing_left, saving
from tests.nodes import OPEN, Network, Node, network
from vime.cluster import processes
from vime.durable.audit import audit
from vime.observe.metrics import read_metrics

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(900)]

STEPS = 30


class NodeDriver(Driver):
    """A running train.py on a node."""

    def __init__(self, node: Node, flags: list[str]) -> None:
        self.lines = []
        self.process = subprocess.Popen(
            [*node.prefix, sys.executable, str(ROOT / "train.py"), *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env=os.environ | OPEN | {"RAY_ADDRESS": node.ray},
        )


@pytest.fixture
def nodes(work: Path) -> Iterator[Network]:
    with network(3) as found:
        head, first, _ = found.nodes
        head.start(head, cpus=1)
        first.start(head, cpus=1)
        yield found


def test_a_lost_node_costs_no_data_and_the_run_resumes_on_another(work: Path, nodes: Network) -> None:
    """Trainer, manager and queue on the head, the engine on a second node, generation workers on both; then a third takes its place."""
    head, first, second = nodes.nodes
    flags = {
        "--hf-checkpoint": work / "start", "--prompt-data": work / "train.jsonl", "--input-key": "prompt", "--label-key": "answer",
        "--rm-type": "reverse_word", "--num-rollout": STEPS, "--rollout-batch-size": PROMPTS, "--n-samples-per-prompt": GROUP,
        "--rollout-max-response-len": 8, "--micro-batch-size": 8, "--lr": 1e-3, "--device": "cpu", "--parity-threshold": 1e-5,
        "--rollout-data-transport": "straw", "--rollout-generation-workers": 2,
    }  # fmt: skip
    words = [str(part) for pair in flags.items() for part in pair] + saving(work)
    drivers = []

    def begin(run: str) -> NodeDriver:
        drivers.append(NodeDriver(head, [*words, "--run-id", named(run)]))
        return drivers[-1]

    try:
        driver = begin("nodes")
        placed = driver.until(r"trainer on (\S+), engines on (\S+)")
        assert placed.groups() == (head.address, first.address)
        driver.until(rf"step +3/{STEPS}")
        first.kill()
        code, output = driver.finish()
        assert code in (5, 30), output
        assert re.search(rf"error: .*node {re.escape(first.address)} is lost", output), output
        assert "Traceback" not in output
        nothing_left(named("nodes"))

        second.start(head, cpus=1)
        driver = begin("again")
        code, output = driver.finish()
        assert code == 0, output
        assert f"trainer on {head.address}, engines on {second.address}" in output
        nothing_left(named("again"))
    finally:
        for driver in drivers:
            driver.process.kill()
            driver.process.wait()
        for run in ("nodes", "again"):
            processes.sweep(named(run), grace=0)
    found = audit(work / "checkpoint", deep=True)
    assert found.clean, found.findings
    assert found.trained_samples == STEPS * PROMPTS * GROUP
    steps = read_metrics(work / "checkpoint", "step")
    assert [one["rollout_id"] for one in steps] == list(range(STEPS))
    assert max(one["train/train_rollout_logprob_abs_diff"] for one in steps) <= 1e-5
