"""Weights over gloo between two network namespaces, which know each other by address alone, as machines do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.nodes import network

ROOT = Path(__file__).resolve().parents[3]
END = [sys.executable, "-m", "tests.vime.transport.broadcast"]


def test_a_broadcast_reaches_another_node() -> None:
    """Where the host's name stands for 127.0.0.1, gloo by itself offered that address to the other node."""
    with network(2) as found:
        if not found.isolated:
            pytest.skip(f"needs network namespaces: {found.why_not}")
        first, second = found.nodes
        sender = subprocess.Popen(
            [*first.prefix, *END, "send", first.address], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        try:
            assert sender.stdout is not None
            port = sender.stdout.readline().strip()
            command = [*second.prefix, *END, "receive", first.address, port]
            received = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
            assert received.stdout.strip() == str([float(i) for i in range(6)]), received.stderr
            assert sender.wait(60) == 0
        finally:
            sender.kill()
            sender.wait()
