"""Groups of samples as records: a tree in JSON, and its large arrays as tensors beside it. Nothing that is read is executed.

Format ``vime.v1`` is ``{"version": 1, "tree": ...}``. JSON's own types stand for themselves; everything else is an object with the key "$"::

    {"$": "sample", "state": {...}}      a Sample, by its fields and a user's own attributes
    {"$": "tuple", "items": [...]}       {"$": "map", "items": [[key, value], ...]}    keys that are no text, or contain "$"
    {"$": "bytes", "base64": "..."}      {"$": "scalar", "dtype": "float32", "base64": "..."}    a NumPy scalar
    {"$": "image", "base64": "..."}      a PIL image, as PNG
    {"$": "array", "tensor": 0, "kind": "numpy" | "torch" | "ints" | "floats", "dtype": "uint16"}

The last names a tensor of the same record set by its place. Straw stores ten dtypes; others keep their bytes under a type of the same width
(``STORED``), so a round trip is exact for each of them.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from vime.errors import DataError
from vime.sample import Sample

if TYPE_CHECKING:
    import torch

NAME = "vime.v1"
#: Several of them without tensors, as the items of a JSON array.
MANY = "vime.many.v1"
_VERSION = 1
#: Lists of numbers longer than this are stored as tensors: a JSON number of a log-probability takes 20 bytes.
_LONG = 1024
#: What contains itself is found before.
_text = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
#: What stands for itself in JSON.
_PLAIN = {type(None), bool, int, float, str}
_TEXT = {str}

#: torch dtype -> the dtype of the same width that Straw stores it as.
STORED = {
    "uint16": "int16",
    "uint32": "int32",
    "uint64": "int64",
    "complex64": "int64",
    "float8_e4m3fn": "uint8",
    "float8_e5m2": "uint8",
    "float8_e4m3fnuz": "uint8",
    "float8_e5m2fnuz": "uint8",
    "float8_e8m0fnu": "uint8",
}


def encode(value: Any) -> tuple[bytes, list[Any]]:
    """`value` as JSON and the tensors that it names, CPU, contiguous, of dtypes that Straw stores.

    Raises DataError naming the place: a type that is not listed above, or a container that contains itself; and for what JSON cannot write, such
    as more levels than Python goes down.
    """
    tensors: list[Any] = []
    try:
        tree = _tree(value, tensors, "value", None)
        return _text({"version": _VERSION, "tree": tree}).encode(), tensors
    except RecursionError as error:
        raise DataError(
            "containers within containers, too deep to be stored", hint="see the samples' metadata"
        ) from error
    except (ValueError, TypeError) as error:  # an integer of thousands of digits, an attribute whose name is no text
        raise DataError(f"cannot be stored: {error}", hint="see the samples' metadata") from error


def join(payloads: Sequence[bytes]) -> bytes:
    """Records that name no tensors as one; `decode` finds each by its place."""
    return b"[" + b",".join(payloads) + b"]"


def decode(payload: bytes, tensor: Callable[[int], Any], place: int | None = None) -> Any:
    """The inverse; with `place`, of the record at that place of what `join` made. `tensor` gives a tensor by its number; what it returns for a
    NumPy array is turned into one.

    Raises DataError when this is not such a record, or has none at that place.
    """
    try:
        record = json.loads(payload)
        if place is not None:
            record = record[place]
        version = record["version"]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        what = "not a rollout record" if place is None else f"no rollout record at place {place}"
        raise DataError(f"{what}: {error}") from error
    if version != _VERSION:
        raise DataError(f"rollout record of format {version}; this vime reads {_VERSION}")
    return _value(record["tree"], tensor)


class _At:
    """A container on the way down, under the name that it has in the one above. Rendered only when something is wrong."""

    __slots__ = ("above", "name", "value")

    def __init__(self, value: Any, name: str | int, above: _At | None) -> None:
        """Raises DataError when `value` is one of the containers that it lies in."""
        self.value, self.name, self.above = value, name, above
        while above is not None:
            if above.value is value:
                raise DataError("contains itself, which cannot be stored", where=self.render())
            above = above.above

    def render(self) -> str:
        """Such as ``sample 3 of group 1.metadata.calls[0]``."""
        if isinstance(self.value, Sample):
            return self.value.name
        return str(self.name) if self.above is None else self.above.below(self.name)

    def below(self, name: str | int) -> str:
        """How something in this container is called."""
        return self.render() + (f"[{name}]" if isinstance(name, int) else f".{name}")


def _tree(value: Any, tensors: list[Any], name: str | int, above: _At | None) -> Any:
    """What stands for `value`, called `name` in the container `above`. Most of a durable step's own work is done here: plain values first."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:
        kinds = set(map(type, value))
        if (numbers := _numbers(value, kinds)) is not None:
            return _long(value, numbers, tensors)
        if kinds <= _PLAIN:
            return value
    elif kind is tuple:
        if set(map(type, value)) <= _PLAIN:
            return {"$": "tuple", "items": [*value]}
    elif kind is dict and "$" not in value and set(map(type, value)) <= _TEXT:
        if set(map(type, value.values())) <= _PLAIN:
            return value
        at = _At(value, name, above)
        return {key: _tree(item, tensors, key, at) for key, item in value.items()}
    match value:
        case Sample():
            at = _At(value, name, above)
            state = {}
            for key, item in value.to_dict().items():
                # What a new sample has anyway is left out: most fields of most samples.
                new = _NEW.get(key, _NOWHERE)
                if item is not new and not (type(item) is type(new) and item == new):
                    state[key] = item if type(item) in _PLAIN else _tree(item, tensors, key, at)
            return {"$": "sample", "state": state}
        case bytes() | bytearray():
            return {"$": "bytes", "base64": base64.b64encode(value).decode()}
        case list() | tuple():
            at = _At(value, name, above)
            items = [_tree(item, tensors, i, at) for i, item in enumerate(value)]
            return items if isinstance(value, list) else {"$": "tuple", "items": items}
        case dict():
            at = _At(value, name, above)
            pairs = [[_tree(k, tensors, "key", at), _tree(v, tensors, str(k), at)] for k, v in value.items()]
            return {"$": "map", "items": pairs}
    return _foreign(value, tensors, above.below(name) if above is not None else str(name))


_NEW = Sample().to_dict()
#: What no sample holds.
_NOWHERE = object()


def _foreign(value: Any, tensors: list[Any], where: str) -> Any:
    """Values of NumPy, torch and PIL, told without importing what the caller has not."""
    import numpy as np
    import torch

    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return {"$": "scalar", "dtype": value.dtype.name, "base64": base64.b64encode(value.tobytes()).decode()}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        native = np.ascontiguousarray(value, value.dtype.newbyteorder("=")).reshape(value.shape)
        return _array(torch.from_numpy(native), "numpy", tensors, where)
    if isinstance(value, torch.Tensor):
        return _array(value, "torch", tensors, where)
    if any(base.__module__ == "PIL.Image" and base.__name__ == "Image" for base in type(value).__mro__):
        buffer = io.BytesIO()
        value.save(buffer, "PNG")
        return {"$": "image", "base64": base64.b64encode(buffer.getvalue()).decode()}
    if isinstance(value, str):  # a member of a text enumeration
        return str(value)
    raise DataError(
        f"{type(value).__name__} cannot be stored",
        where=where,
        hint="samples may hold numbers, texts, bytes, lists, tuples, dicts, arrays, tensors and images",
    )


def _array(tensor: Any, kind: str, tensors: list[Any], where: str) -> dict[str, Any]:
    import torch
    from straw.tensor import DTYPES

    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise DataError(f"a tensor of layout {tensor.layout} cannot be stored", where=where)
    tensor = tensor.detach().cpu().contiguous()
    dtype = str(tensor.dtype).removeprefix("torch.")
    stored = STORED.get(dtype, dtype)
    if stored not in DTYPES:
        raise DataError(f"a tensor of type {dtype} cannot be stored", where=where)
    tensors.append(tensor if stored == dtype else tensor.view(getattr(torch, stored)))
    return {"$": "array", "tensor": len(tensors) - 1, "kind": kind, "dtype": dtype}


def _numbers(value: list[Any], kinds: set[type]) -> str | None:
    """Whether `value`, of elements of these types, is a long list of one kind of number that a tensor holds exactly."""
    if len(value) <= _LONG:
        return None
    if kinds == {float}:
        return "floats"
    if kinds == {int} and min(value) >= -(1 << 63) and max(value) < 1 << 63:
        return "ints"
    return None


def _long(value: list[Any], kind: str, tensors: list[Any]) -> dict[str, Any]:
    import torch

    if kind == "floats":
        tensors.append(torch.tensor(value, dtype=torch.float64))
    else:
        small = min(value) >= -(1 << 31) and max(value) < 1 << 31
        tensors.append(torch.tensor(value, dtype=torch.int32 if small else torch.int64))
    return {"$": "array", "tensor": len(tensors) - 1, "kind": kind, "dtype": "float64" if kind == "floats" else "int64"}


def _value(tree: Any, tensor: Callable[[int], Any]) -> Any:
    if isinstance(tree, list):
        return [_value(item, tensor) for item in tree]
    if not isinstance(tree, dict):
        return tree
    match tree.get("$"):
        case None:
            return {key: _value(item, tensor) for key, item in tree.items()}
        case "sample":
            return Sample.from_dict(_value(tree["state"], tensor))
        case "tuple":
            return tuple(_value(item, tensor) for item in tree["items"])
        case "map":
            return {_value(key, tensor): _value(item, tensor) for key, item in tree["items"]}
        case "bytes":
            return base64.b64decode(tree["base64"])
        case "scalar":
            import numpy as np

            return np.frombuffer(base64.b64decode(tree["base64"]), dtype=tree["dtype"])[0]
        case "image":
            from PIL import Image

            image = Image.open(io.BytesIO(base64.b64decode(tree["base64"])))
            image.load()
            return image
        case "array":
            return restore(tensor(tree["tensor"]), tree["kind"], tree["dtype"])
    raise DataError(f"rollout record with an unknown tag {tree.get('$')!r}")


def restore(tensor: torch.Tensor, kind: str, dtype: str) -> Any:
    """A stored tensor as what it was: a list, a NumPy array or a tensor of the type that it had."""
    import torch

    if kind in ("ints", "floats"):
        return tensor.tolist()
    tensor = tensor if str(tensor.dtype) == f"torch.{dtype}" else tensor.view(getattr(torch, dtype))
    return tensor.numpy() if kind == "numpy" else tensor
