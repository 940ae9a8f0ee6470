"""``vllm-aux-output-reset.patch``: routed experts right after a prefix-cache reset that overtakes a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine


def test_reset_with_a_step_in_flight(inside: Any, models: dict[str, Path]) -> None:
    """Without the patch the worker asserts that nothing is in flight, and the engine dies.

    Preempted requests are computed again and give the routes of an undisturbed run; so does a request after a reset that came between a stop
    token and the step that was sent beyond it.
    """
    found = inside.interpreted("reset_in_flight.py", str(models["moe"]), ASYNC_SCHEDULING="1")
    assert found["async_scheduling"]
    assert found["shape"] == [89, 2, 2]
    assert found["preempted"] == [True, True]
    assert found["after_stop"]
