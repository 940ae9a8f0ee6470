"""A group as it was when its fate changed. Taking one costs the event loop little; what it costs to write it down, the writer's thread pays."""

from __future__ import annotations

import dataclasses
import io
import pickle
from functools import cached_property
from typing import Any

from vime.data.protocol import Group
from vime.durable import codec
from vime.sample import Sample, Status, VersionSpan


class Packed:
    """`group` at this moment. Raises DataError where it holds something that cannot be stored, at once or when it is read (see `codec`).

    A group of plain values (containers, texts, bytes, numbers) is copied, for a fifth of what encoding costs, and encoded by whoever asks first.
    The copy is a pickle because that is quick and tells an array from its bytes; it never leaves the process. Every other group is encoded at
    once: arrays are not copied.
    """

    def __init__(self, group: Group) -> None:
        buffer = io.BytesIO()
        try:
            if type(group) is not list or not all(map(_plain, group)):
                raise _ForeignError
            _Copier(buffer, 5).dump([sample.to_dict() for sample in group])
            self._copy = buffer.getvalue()
        except (_ForeignError, RecursionError):
            self._encoded = codec.encode(group)

    @cached_property
    def _encoded(self) -> tuple[bytes, list[Any]]:
        return codec.encode([_sample(state) for state in pickle.loads(self._copy)])

    @property
    def tree(self) -> bytes:
        return self._encoded[0]

    @property
    def tensors(self) -> list[Any]:
        return self._encoded[1]

    def records(self, name: str, metadata: dict[str, Any]) -> list[Any]:
        """Straw records: the tree first, then the tensors. Each carries `metadata`."""
        from straw import Record
        from straw.tensor import tensor_record

        found = [Record(name, self.tree, codec.NAME, dict(metadata))]
        for place, tensor in enumerate(self.tensors):
            record = tensor_record(tensor, f"{name}:{place}")
            found.append(dataclasses.replace(record, metadata=record.metadata | metadata))
        return found


class _ForeignError(Exception):
    """A group holds more than samples of plain values."""


class _Copier(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Called for what pickle does not copy by itself."""
        raise _ForeignError


def _plain(sample: Any) -> bool:
    """Whether `_sample` makes the same one of its state."""
    return type(sample) is Sample and type(sample.status) is Status


def _sample(state: dict[str, Any]) -> Sample:
    """The inverse of `Sample.to_dict`, which checks nothing: it was one a moment ago."""
    sample = object.__new__(Sample)
    vars(sample).update(state)
    sample.status = Status(state["status"])
    sample.version_spans = [VersionSpan(*span) for span in state["version_spans"]]
    return sample
