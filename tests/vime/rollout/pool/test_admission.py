"""Which groups may start, and which make a batch: numbers against brute force and hand-worked cases."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from vime.rollout.pool.admission import NEVER, Limits, choose, feasible, room


def can_be_trained(deadlines: list[int], step: int, size: int) -> bool:
    """Whether some order of training, `size` a step from `step` on, meets every deadline."""
    return any(
        all(deadline >= step + position // size for position, deadline in enumerate(order))
        for order in set(permutations(deadlines))
    )


@given(st.lists(st.integers(0, 4), max_size=6), st.integers(0, 3), st.integers(1, 3))
def test_feasible_is_what_brute_force_finds(deadlines: list[int], step: int, size: int) -> None:
    assert feasible(Counter(deadlines), step, size) == can_be_trained(deadlines, step, size)


def test_room_is_what_the_lag_leaves() -> None:
    """Two groups a step. At step 3 the engines hold version 4: with lag 1 its tokens may be trained in steps 3 and 4."""
    limits = Limits(size=2, concurrency=100, max_lag=1)
    assert room(limits, 4, 3, {}, {}) == 4
    assert room(limits, 4, 3, {4: 1}, {3: 2}) == 1
    assert room(limits, 4, 4, {}, {}) == 2  # batch 3 is planned and trains; one step ahead may be drawn
    assert room(limits, 4, 5, {}, {}) == 0  # nothing until version 5
    assert room(Limits(2, 100, 0), 4, 3, {}, {}) == 2
    assert room(Limits(2, 100, 0), 4, 4, {}, {}) == 0


def test_room_is_bounded_without_a_lag_too() -> None:
    limits = Limits(size=2, concurrency=5)
    assert room(limits, None, 0, {NEVER: 3}, {}) == 2
    assert room(limits, None, 0, {}, {NEVER: 4}) == 1
    assert room(limits, None, 0, {}, {NEVER: 9}) == 0
    assert room(Limits(2, 5, None, steps=4), None, 2, {NEVER: 1}, {NEVER: 2}) == 1
    assert room(Limits(2, 5, None, steps=4), None, 4, {}, {}) == 0


def test_a_batch_takes_the_earliest_deadlines_and_waits_for_what_no_later_step_may_train() -> None:
    two = {0: (9, 0), 1: (9, 1)}
    assert choose({0: (9, 0), 1: (5, 1), 2: (7, 2)}, {}, 5, 2) == [1, 2]
    assert choose({0: (9, 0)}, {}, 5, 2) is None
    assert choose(two, {5: 1}, 5, 2) is None
    assert choose(two, {6: 1}, 5, 2) == [0, 1]
    # Three running groups due by step 6, which takes two: one of them must be in this batch.
    assert choose(two, {6: 3}, 5, 2) is None
    assert choose({i: (NEVER, i) for i in range(3)}, {NEVER: 4}, 0, 2) == [0, 1]


@given(
    st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=7),
    st.integers(1, 3),
)
def test_when_all_have_finished_a_batch_closes_and_keeps_the_rest_feasible(
    groups: list[tuple[int, bool]], size: int
) -> None:
    deadlines = [deadline for deadline, _ in groups]
    if not feasible(Counter(deadlines), 0, size) or len(deadlines) < size:
        return
    chosen = choose({i: (deadline, i) for i, deadline in enumerate(deadlines)}, {}, 0, size)
    assert chosen is not None
    left = Counter(deadline for i, deadline in enumerate(deadlines) if i not in chosen)
    assert feasible(left, 1, size)
