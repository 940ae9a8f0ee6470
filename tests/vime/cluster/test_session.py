"""What a run says of a cluster that it cannot join."""

from __future__ import annotations

import os
import socket
import time
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest

from vime.cluster import processes
from vime.cluster.session import Session, _reach
from vime.cluster.watch import Deaths, _what_ended
from vime.errors import MachineError, UsageError


def test_a_cluster_that_does_not_answer_is_named_at_once() -> None:
    with socket.socket() as bound:  # bound, but nobody listens
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(MachineError, match=f"no Ray cluster answers at RAY_ADDRESS={address}"):
            _reach(address)


def test_addresses_that_ray_resolves_itself_are_left_to_it() -> None:
    _reach("auto")
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        _reach(f"[::1]:{server.getsockname()[1]}")


def test_a_run_id_too_long_for_rays_sockets_is_refused_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray said `validate_socket_filename failed`, and the hint blamed a busy machine."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    folder = tmp_path / "r"
    monkeypatch.setenv("VIME_RUNTIME_DIR", str(folder))
    session = Session(Namespace(run_id="x" * 90, run_dir=str(tmp_path / "run")))
    with pytest.raises(UsageError, match=rf"--run-id x+ is \d+ characters too long: .*below {folder}"):
        session.start_ray(1)


@pytest.mark.engine
def test_a_ray_that_was_too_slow_is_started_again_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray
    from ray._private import node, services

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    asked: list[bool] = []
    real = services.get_node

    def slow(*arguments: object) -> object:
        asked.append(True)
        if len(asked) == 1:  # and the clock leaps over the limit of 30 seconds
            raise RuntimeError("no such node yet")
        return real(*arguments)

    clock = SimpleNamespace(sleep=time.sleep, time=time.time, monotonic=lambda: time.monotonic() + 31 * len(asked))
    monkeypatch.setattr(services, "get_node", slow)
    monkeypatch.setattr(node, "time", clock)
    args = Namespace(run_id=f"slow-{os.getpid()}", run_dir=str(tmp_path / "run"), device="cpu")
    with Session(args) as session:
        session.start_ray(1)
        assert len(asked) >= 2
        assert len(ray.nodes()) == 1
        raylets = [one for one in processes.processes(args.run_id) if "/raylet/raylet" in one.command]
        assert len(raylets) == 1
    assert processes.processes(args.run_id) == []


def test_an_actor_that_a_what_ended_took_along_is_told_from_one_that_died_alone() -> None:
    said = "The actor died unexpectedly before finishing this task.\n\tclass_name: A\n\tip: 10.0.0.7\nThe actor died because {}"
    assert _what_ended(RuntimeError(said.format("its node has died. Node Id: 00"))) == "node 10.0.0.7 is lost"
    assert _what_ended(RuntimeError(said.format("its worker process has died"))) is None


def test_a_death_that_was_told_is_not_looked_for_again() -> None:
    Deaths().check([object()])
