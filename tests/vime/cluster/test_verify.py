"""What --check-weight-update-equal judges by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vime.cluster.verify import checkpoint_names, compare
from vime.errors import EngineError

GOOD = {"embed": "a1", "norm": "b2", "linear": ""}


def test_equal_hashes_are_counted_and_packed_ones_told() -> None:
    found = compare([GOOD, GOOD], [GOOD, GOOD], 9)
    assert (found.sent, found.compared, found.opaque, found.engines) == (9, 2, 1, 2)
    assert "all 9 tensors were sent; 2 of each of 2 engines" in str(found)
    assert "1 are packed" in str(found)


@pytest.mark.parametrize(
    ("first", "again", "said"),
    [
        ([GOOD, GOOD | {"norm": "x"}], [GOOD, GOOD], "engine 1: norm differs from another engine's"),
        ([GOOD, {"embed": "a1"}], [GOOD, GOOD], "engine 1: linear differs from another engine's"),
        ([GOOD], [GOOD | {"embed": "x"}], "engine 0: embed differs from its own after"),
    ],
)
def test_the_first_difference_is_named(first: list[dict[str, str]], again: list[dict[str, str]], said: str) -> None:
    with pytest.raises(EngineError, match=said):
        compare(first, again, 1)


def test_names_are_read_from_the_headers(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    np = pytest.importorskip("numpy")
    save_file({"a.weight": np.zeros(2), "b.weight": np.zeros(1)}, tmp_path / "one.safetensors", {"format": "pt"})
    save_file({"c.weight": np.zeros(1)}, tmp_path / "two.safetensors")
    assert checkpoint_names(tmp_path) == {"a.weight", "b.weight", "c.weight"}
    assert json.dumps(sorted(checkpoint_names(tmp_path / "none"))) == "[]"
