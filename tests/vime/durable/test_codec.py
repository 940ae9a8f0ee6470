"""What goes into the queue comes out equal, type for type."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from vime.durable import codec
from vime.errors import DataError
from vime.sample import ResponseMeta, Sample, VersionSpan

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
keys = st.text(max_size=3) | st.sampled_from(["$", "items"]) | st.integers() | st.booleans()
trees = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4)
        | st.tuples(inner, inner)
        | hnp.arrays(
            st.sampled_from(["i4", "u2", "f4", "f8", "?"]), hnp.array_shapes(min_dims=0, min_side=0, max_side=3)
        )
    ),
    max_leaves=12,
)


def there_and_back(value: Any) -> Any:
    tree, tensors = codec.encode(value)
    return codec.decode(tree, tensors.__getitem__)


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    match one:
        case float():
            return one == other or (math.isnan(one) and math.isnan(other))
        case np.ndarray():
            return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
        case list() | tuple():
            return len(one) == len(other) and all(map(same, one, other))
        case dict():
            return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


@settings(max_examples=150)
@given(trees)
def test_trees(value: Any) -> None:
    assert same(there_and_back(value), value)


@pytest.mark.parametrize("dtype", sorted({*codec.STORED, "bfloat16", "float16", "bool", "int8", "float64"}))
def test_every_dtype_keeps_its_bytes(dtype: str) -> None:
    """Straw knows ten types; uint16 routes must not come back as int16."""
    kind = getattr(torch, dtype)
    raw = torch.arange(64, dtype=torch.uint8) % 2
    value = raw.view(kind).reshape(2, -1)
    back = there_and_back({"x": value})["x"]
    assert back.dtype == kind
    assert back.shape == value.shape
    assert torch.equal(back.view(torch.uint8), value.view(torch.uint8))
    _, tensors = codec.encode(value)
    from straw.tensor import tensor_record

    assert tensor_record(tensors[0], "x").codec == "tensor.v1"


@pytest.mark.parametrize("value", [[0.1 * i for i in range(5000)], [-i for i in range(5000)], [1 << 40] * 2000])
def test_long_lists_of_numbers_are_tensors(value: list[Any]) -> None:
    tree, tensors = codec.encode({"x": value})
    assert len(tree) < 200
    assert len(tensors) == 1
    assert there_and_back({"x": value})["x"] == value


@pytest.mark.parametrize("value", [[True] * 2000, [1, 2.0] * 1000, [1 << 70] * 2000, [None] * 2000])
def test_other_long_lists_stay_lists(value: list[Any]) -> None:
    assert same(there_and_back(value), value)


def test_a_sample_with_everything() -> None:
    sample = Sample(
        group_index=3, index=7, prompt=[{"role": "user", "content": "é"}], tokens=[1, 2], label={"a": (1, 2)}
    )
    routes = np.arange(2 * 3 * 2, dtype=np.uint16).reshape(-1, 3, 2)
    sample.append_response_tokens(
        None, [5], [-0.5], meta_info=ResponseMeta(versions=[VersionSpan("4", 0, 1)], routed_experts=routes)
    )
    sample.metadata["$"] = {1: b"x"}
    sample.reward = {"score": np.float32(0.25)}
    sample.extra = torch.ones(2, dtype=torch.bfloat16)  # type: ignore[attr-defined]
    back = there_and_back([sample])[0]
    assert isinstance(back, Sample)
    assert back.version_spans == sample.version_spans
    assert same(back.rollout_routed_experts, sample.rollout_routed_experts)
    assert torch.equal(back.extra, sample.extra)
    assert type(back.reward["score"]) is np.float32
    one, other = back.to_dict(), sample.to_dict()
    for array in ("rollout_routed_experts", "extra"):
        del one[array], other[array]
    assert one == other


def test_what_cannot_be_stored_is_named() -> None:
    sample = Sample(index=7, group_index=3)
    sample.metadata["tool"] = object()
    with pytest.raises(DataError, match=r"sample 7 of group 3\.metadata\.tool: object cannot be stored"):
        codec.encode([sample])
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(DataError, match="contains itself"):
        codec.encode(loop)


@pytest.mark.parametrize(
    "payload", [b"", b"[]", b"{}", b'{"version": 2, "tree": 1}', b'{"version": 1, "tree": {"$": "pickle"}}']
)
def test_other_records_are_refused(payload: bytes) -> None:
    with pytest.raises(DataError):
        codec.decode(payload, lambda place: None)


def test_records_without_tensors_join_and_come_apart() -> None:
    groups = [[Sample(group_index=g, index=2 * g + i, prompt="é" * g, reward=-0.0) for i in range(2)] for g in range(3)]
    joined = codec.join([codec.encode(group)[0] for group in groups])
    for place, group in enumerate(groups):
        assert same(codec.decode(joined, lambda number: None, place), group)
    for payload in (joined, b"{}", b"", codec.encode(groups[0])[0]):
        with pytest.raises(DataError, match="no rollout record at place 3"):
            codec.decode(payload, lambda number: None, 3)
