"""Recorded tensors of samples by reference: a sample that travels to a trainer says where they lie in the queue, and the trainer reads them there.

Of all fields only those that grow with layers or supports are worth it (`FIELDS`). A reference is plain and small; reading checks its digests.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vime.data.protocol import Group
from vime.durable import codec
from vime.durable.faults import told
from vime.sample import Sample, Stored

FIELDS = (
    "rollout_routed_experts",
    "rollout_top_p_token_ids",
    "rollout_top_p_offsets",
    "rollout_top_p_log_probs",
)
_local = threading.local()


@dataclass(frozen=True)
class TensorAt(Stored):
    """A tensor in a queue's packs: `tensor` is Straw's reference, `kind` and `dtype` what it was before it was stored (see `codec`).

    `folder` and `run_id` name the queue; it must be mounted at the same path wherever this is read.
    """

    folder: str
    run_id: str
    tensor: Any
    kind: str
    dtype: str

    def load(self) -> Any:
        """A NumPy array, also where it was a list of numbers: of int32 or int64, or float64. Raises DataError when it is damaged or gone."""
        from pathlib import Path

        with told(Path(self.folder), "reading what was recorded of a sample"):
            tensor = self.tensor.load(reader=_reader(self.folder, self.run_id))
        if self.kind in ("ints", "floats"):
            return tensor.numpy()
        return codec.restore(tensor, self.kind, self.dtype)


def places(tree: bytes) -> list[dict[str, tuple[int, str, str]]]:
    """Of an encoded group: for each sample the `FIELDS` that are tensors beside it, as (place, kind, dtype)."""
    found = []
    for sample in json.loads(tree)["tree"]:
        state = sample["state"]
        fields = {name: state[name] for name in FIELDS if isinstance(state.get(name), dict)}
        found.append(
            {name: (f["tensor"], f["kind"], f["dtype"]) for name, f in fields.items() if f.get("$") == "array"}
        )
    return found


def recorded(group: Group) -> list[dict[str, Any]]:
    """The `FIELDS` of each sample as they are now: a hook may put others in their place later."""
    return [{name: getattr(sample, name) for name in FIELDS} for sample in group]


def of_group(store: Any, ref: Any, values: Sequence[Mapping[str, Any]]) -> dict[int, TensorAt]:
    """Where the recorded tensors of a group are, by the identity of its `values` when it was written; `ref` is its record in `store`."""
    from straw.tensor import TensorRef

    with store.read_session() as reader:
        members = reader.validate(ref)
        tree = bytes(reader.read_record(members[0]).payload)
        folder, run_id = str(store.backend.root), store.run_id
        return {
            id(own[name]): TensorAt(folder, run_id, TensorRef.from_record(store, members[1 + place]), kind, dtype)
            for own, fields in zip(values, places(tree), strict=True)
            for name, (place, kind, dtype) in fields.items()
        }


def refer(samples: Iterable[Sample], known: Mapping[int, TensorAt]) -> list[Sample]:
    """`samples`, those with recorded tensors that are `known` as copies that refer to them. A value that a hook put in the place of the
    recorded one is another value, and travels."""
    found = []
    for sample in samples:
        changes = {name: at for name in FIELDS if (at := known.get(id(getattr(sample, name)))) is not None}
        if changes:
            sample = copy.copy(sample)
            for name, at in changes.items():
                setattr(sample, name, at)
        found.append(sample)
    return found


def _reader(folder: str, run_id: str) -> Any:
    """A session of this thread: those of Straw serve one call at a time."""
    from straw import SharedFilesystemStore

    from vime.durable.pool import CODECS

    readers = _local.__dict__.setdefault("readers", {})
    if (folder, run_id) not in readers:
        store = SharedFilesystemStore(folder, run_id, codecs=CODECS)
        session = store.read_session()
        readers[folder, run_id] = (store, session, session.__enter__())
    return readers[folder, run_id][2]
