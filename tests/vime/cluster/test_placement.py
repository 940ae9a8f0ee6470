"""Devices go to actors in numeric order, on the nodes they are on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime.cluster.placement import Bundle, check_medium, place, sorted_bundles
from vime.cluster.weights import flushes
from vime.errors import UsageError

BUNDLES = [Bundle(i, f"10.0.0.{host}", device) for i, (host, device) in enumerate([(10, 10), (10, 2), (9, 1), (9, 0)])]


def test_devices_and_hosts_are_ordered_as_numbers() -> None:
    assert [(b.host, b.device) for b in sorted_bundles(BUNDLES)] == [
        ("10.0.0.9", 0), ("10.0.0.9", 1), ("10.0.0.10", 2), ("10.0.0.10", 10),
    ]  # fmt: skip


def test_separate_engines_follow_the_trainers() -> None:
    placement = place(BUNDLES, trainer_ranks=2, engines=[2], colocate=False)
    assert [b.device for b in placement.trainers] == [0, 1]
    assert [b.device for b in placement.engines[0]] == [2, 10]
    assert not placement.shared


def test_colocated_engines_share_the_trainers_devices() -> None:
    placement = place(BUNDLES, trainer_ranks=4, engines=[2, 2], colocate=True)
    assert placement.shared
    assert placement.engines == (placement.trainers[:2], placement.trainers[2:])


def test_too_few_devices_say_how_many_are_needed() -> None:
    with pytest.raises(UsageError, match=r"5 devices are needed \(3 for the trainer, 2 for engines\), 4 are there"):
        place(BUNDLES, 3, [1, 1], colocate=False)


def test_an_engine_across_nodes_is_refused() -> None:
    with pytest.raises(UsageError, match="engine 0 would lie on 2 nodes"):
        place(BUNDLES, 1, [2], colocate=False)


@given(trainers=st.integers(1, 6), engines=st.integers(0, 6), colocate=st.booleans())
def test_every_actor_gets_its_own_share(trainers: int, engines: int, colocate: bool) -> None:
    bundles = [Bundle(i, "127.0.0.1", i) for i in range(12)]
    placement = place(bundles, trainers, [1] * engines, colocate)
    used = [b.index for own in placement.engines for b in own]
    assert len(set(used)) == engines
    assert len({b.index for b in placement.trainers}) == trainers
    if not colocate:
        assert not {b.index for b in placement.trainers} & set(used)


@pytest.mark.parametrize(
    ("interval", "flushed"),
    [(1, [11, 12, 13, 14, 15]), (2, [11, 13, 15]), (3, [11, 13]), (0, [11]), (-1, [11])],
)
def test_caches_are_dropped_at_the_first_update_and_every_interval(interval: int, flushed: list[int]) -> None:
    """Version v flushes when v is the first after the start, or (v - 1) mod interval is 0."""
    assert [v for v in range(11, 16) if flushes(v, 10, interval)] == flushed


def test_an_address_is_asked_of_the_process_that_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Public report slime#2373: derived from a rank, it was another node's where rollouts begin in the middle of one."""
    import ray.util

    from vime.engine import net

    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    port = net.hold_port(net.own_host())
    try:
        assert port.url == f"http://127.0.0.1:{port.port}"
    finally:
        port.close()


def test_shared_memory_cannot_reach_another_node() -> None:
    away = place(BUNDLES, 2, [1], colocate=False)
    assert away.across() == "trainer on 10.0.0.9, engines on 10.0.0.10"
    with pytest.raises(
        UsageError, match=r"shm reaches engines on the trainer's host 10\.0\.0\.9 only, not on 10\.0\.0\.10"
    ):
        check_medium("shm", away)
    check_medium("gloo", away)
    here = place(BUNDLES[2:], 1, [1], colocate=False)
    assert here.across() is None
    check_medium("shm", here)


def test_gloo_is_told_addresses_that_other_nodes_reach() -> None:
    from vime.engine import net

    assert net.address_towards("127.0.0.1", 9) == "127.0.0.1"
    assert net.interface_of("127.0.0.1") == "lo"
    assert net.interface_of("203.0.113.9") is None
