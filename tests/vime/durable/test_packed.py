"""A group is recorded as it was when it was packed, whatever becomes of it before it is written."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vime.durable import codec
from vime.durable.packed import Packed
from vime.errors import DataError
from vime.sample import ResponseMeta, Sample, Status, VersionSpan

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3) | st.tuples(inner, inner)
    ),
    max_leaves=8,
)


def answered(index: int) -> Sample:
    sample = Sample(group_index=2, index=index, prompt="ab", label="ba", tokens=[1, 2])
    meta = ResponseMeta(versions=[VersionSpan("4", 0, 2)], prompt_tokens=2)
    sample.append_response_tokens(None, [5, 6], [-0.5, -0.25], meta_info=meta, text="ba")
    sample.status, sample.reward = Status.TRUNCATED, 0.5
    sample.trace.append({"name": "generate", "start": 1.5, "end": 2.5})
    return sample


def change(value: Any) -> None:
    """All containers below `value` become others, in place."""
    if isinstance(value, list | tuple):
        for item in value:
            change(item)
    elif isinstance(value, dict):
        for item in value.values():
            change(item)
    if isinstance(value, list):
        value.append("late")
    elif isinstance(value, dict):
        value["late"] = "late"


@settings(max_examples=60)
@given(st.dictionaries(st.text(max_size=3), plain, max_size=3))
def test_what_happens_to_a_group_afterwards_is_not_recorded(metadata: dict[str, Any]) -> None:
    group = [answered(0), answered(1)]
    group[0].metadata = metadata
    group[1].extra = [metadata]  # type: ignore[attr-defined]
    before = codec.encode(group)
    packed = Packed(group)
    for sample in group:
        change(vars(sample))
        sample.status = Status.FAILED
        sample.version_spans.clear()
    group.clear()
    assert (packed.tree, packed.tensors) == before


@pytest.mark.parametrize(
    "value",
    [np.arange(3), np.float32(0.5), torch.ones(2), bytearray(b"x"), Status.FAILED, np.zeros((2, 0))],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_plain_value_keeps_its_type(value: Any) -> None:
    """None of them may pass as the bytes or the number that it is like."""
    sample = answered(0)
    sample.metadata["value"] = [value]
    tree, tensors = codec.encode([sample])
    packed = Packed([sample])
    assert packed.tree == tree
    assert all(map(torch.equal, packed.tensors, tensors))


class Own(Sample):
    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"prompt": "its own"}


def test_a_kind_of_sample_is_recorded_as_it_says() -> None:
    packed = Packed([Own(index=1)])
    assert codec.decode(packed.tree, lambda place: None)[0].prompt == "its own"


class Mine:
    def __reduce__(self) -> Any:
        raise AssertionError("a user's object is asked to pickle itself")


def test_what_cannot_be_stored_is_named_at_once() -> None:
    sample = Sample(index=7, group_index=3)
    sample.metadata["tool"] = Mine()
    with pytest.raises(DataError, match=r"sample 7 of group 3\.metadata\.tool: Mine cannot be stored"):
        Packed([sample])


def loop() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def deep() -> list[Any]:
    found: list[Any] = []
    for _ in range(100_000):
        found = [found]
    return found


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (loop(), r"sample 7 of group 3\.metadata\.tool\[0\]: contains itself"),
        ({1, 2}, r"sample 7 of group 3\.metadata\.tool: set cannot be stored"),
        (10**5000, "cannot be stored: Exceeds the limit"),
        (deep(), "too deep to be stored"),
    ],
    ids=["loop", "set", "digits", "deep"],
)
def test_what_a_copy_may_hold_but_no_record_is_refused_when_it_is_written(value: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        _ = Packed([Sample(index=7, group_index=3, metadata={"tool": value})]).tree


class Odd(enum.Enum):
    DONE = "odd"


def test_a_status_that_is_none_is_recorded_as_before() -> None:
    sample = answered(0)
    sample.status = Odd.DONE  # type: ignore[assignment]
    assert Packed([sample]).tree == codec.encode([sample])[0]


def test_the_copy_is_made_without_calling_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of plain values must not be encoded where it is packed: that is the event loop's time."""
    monkeypatch.setattr(codec, "encode", lambda value: pytest.fail("encoded at once"))
    Packed([answered(0)])
