"""What a run says of a cluster that it cannot join."""

from __future__ import annotations

import socket

import pytest

from vime.cluster.session import _reach
from vime.errors import MachineError


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
