"""An engine that somebody else runs stands in for one of ours: whatever the group asks of the one, the other answers."""

from __future__ import annotations

import inspect
import threading
from argparse import Namespace
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from vime.arguments.model_groups import ModelGroup
from vime.cluster.engine import EngineActor
from vime.cluster.external import ExternalEngineActor
from vime.errors import EngineError


def public(kind: type) -> dict[str, inspect.Signature]:
    members = inspect.getmembers(kind, inspect.isfunction)
    return {name: inspect.signature(member) for name, member in members if not name.startswith("_")}


def test_both_kinds_of_engines_have_the_same_methods() -> None:
    ours, theirs = public(EngineActor), public(ExternalEngineActor)
    assert ours.keys() == theirs.keys()
    for name, signature in ours.items():
        assert list(signature.parameters) == list(theirs[name].parameters), name


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    class Healthy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Healthy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def actor(url: str) -> ExternalEngineActor:
    args = Namespace(distributed_timeout_minutes=1, vllm_start_timeout=0.1, rollout_health_check_timeout=1.0)
    return ExternalEngineActor(args, 0, ModelGroup("policy", "", True, urls=(url,)))


def test_a_server_that_stops_answering_is_dead_and_one_let_go_of_is_not(server: HTTPServer) -> None:
    engine = actor(f"http://127.0.0.1:{server.server_port}")
    assert engine.healthy(5.0)
    engine.stop()
    assert engine.died() is None
    lost = actor(f"http://127.0.0.1:{server.server_port}")
    server.shutdown()
    server.server_close()
    assert "does not answer any more" in str(lost.died())


def test_an_address_without_a_server_is_an_error_with_its_place() -> None:
    with pytest.raises(EngineError, match="no healthy server") as error:
        actor("http://127.0.0.1:9").start()
    assert error.value.where == "http://127.0.0.1:9"
