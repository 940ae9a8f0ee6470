"""What a server is started with."""

from __future__ import annotations

import os
import socket
from argparse import Namespace
from collections.abc import Callable

import pytest

from vime.engine import server
from vime.engine.command import server_command, server_environment


def _environment(device: str, threads: int) -> dict[str, str]:
    return server_environment(Namespace(device=device, rollout_num_gpus_per_engine=1), threads)


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
def test_engine_on_a_gpu_counts_its_own_threads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run sets them for all its processes, and vLLM keeps what it finds set."""
    monkeypatch.setenv(name, "32")
    assert name not in _environment("cuda", 32)
    assert _environment("cpu", 2)[name] == "32"
    monkeypatch.delenv(name)
    assert _environment("cpu", 2)[name] == "2"


def test_a_server_counts_no_threads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen on a GPU: the environment left them to vLLM, then the server's main module set them to the machine's cores."""
    seen: list[str] = []
    monkeypatch.setattr(server, "end_with_parent", lambda fd: None)
    monkeypatch.setattr(server, "serve", lambda sock, flags: seen.extend([sock.close() or "served", *os.environ]))
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    held = socket.create_server(("127.0.0.1", 0))
    server.main(["--vime-socket-fd", str(held.detach()), "--vime-parent-fd", "0"])
    assert seen[0] == "served"
    assert not {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & set(seen)


def test_allocator_settings_of_the_trainer_stay_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert "PYTORCH_CUDA_ALLOC_CONF" not in _environment("cuda", 1)


@pytest.mark.parametrize(
    ("given", "counts"), [((), False), (("--vllm-no-disable-log-stats",), True), (("--vllm-disable-log-stats",), False)]
)
def test_servers_count_for_metrics_when_they_are_asked_to(
    make_args: Callable[..., Namespace], given: tuple[str, ...], counts: bool
) -> None:
    command = server_command(make_args(*given), 0)
    assert command.count("--disable-log-stats") == (not counts)
    assert not any("no-disable-log-stats" in word for word in command)
