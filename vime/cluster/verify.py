"""``--check-weight-update-equal``: do the engines hold what the trainer sent, all of it, and does sending it again change nothing?

vLLM fuses and packs the tensors it is given, so an engine's cannot be compared with the trainer's one by one. What can be: that every tensor of the
checkpoint was sent, that all engines hash alike, and that the hashes stay when the same version is sent once more. Where the engine's kernels keep
tensors in a form that vLLM cannot hash (linear layers on a CPU), the parity gate is what compares them, by what they compute.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vime.cluster.weights import WeightUpdater
from vime.errors import EngineError

#: BLAKE2 and SHA hashes of nothing look like any other; vLLM leaves those of what it cannot read empty.
_OPAQUE = ""


@dataclass(frozen=True)
class Verified:
    """`compared` tensors of each of `engines` engines are equal; `opaque` could not be hashed. `sent` tensors came from the trainer."""

    sent: int
    compared: int
    opaque: int
    engines: int

    def __str__(self) -> str:
        sent = f"all {self.sent} tensors were sent; " if self.sent else ""  # files do not tell their tensors
        text = f"weights: {sent}{self.compared} of each of {self.engines} engines hash alike and stay when sent again"
        return text + (
            f"; {self.opaque} are packed by the kernels and judged by the parity gate" if self.opaque else ""
        )


def verify_weights(updater: WeightUpdater, hf_checkpoint: str) -> Verified:
    """Check the version that `updater` has just pushed. Raises EngineError naming the first tensor that is missing or differs."""
    first = updater.engines.checksums()
    names = updater.push_again()
    missing = sorted(checkpoint_names(Path(hf_checkpoint)) - set(names)) if names else []
    if missing:
        raise EngineError(
            f"the trainer did not send {missing[0]}" + (f" and {len(missing) - 1} others" if len(missing) > 1 else ""),
            hint="engines would go on with the checkpoint's",
        )
    return compare(first, updater.engines.checksums(), len(names))


def compare(first: Sequence[Mapping[str, str]], again: Sequence[Mapping[str, str]], sent: int) -> Verified:
    """Hashes by tensor, a mapping an engine, after one update and after the same once more. Raises EngineError for the first difference."""
    for when, engines in (("another engine's", first), ("its own after the same weights were sent again", again)):
        for number, one in enumerate(engines):
            other = first[0] if engines is first else first[number]
            for name in sorted(one.keys() | other.keys()):
                if one.get(name) != other.get(name):
                    raise EngineError(f"engine {number}: {name} differs from {when}")
    known = [value for value in first[0].values() if value != _OPAQUE]
    return Verified(sent, len(known), len(first[0]) - len(known), len(first))


def checkpoint_names(folder: Path) -> set[str]:
    """Names of the tensors in a Hugging Face folder's safetensors files, from their headers."""
    names: set[str] = set()
    for path in sorted(folder.glob("*.safetensors")):
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            names |= json.loads(file.read(length)).keys() - {"__metadata__"}
    return names
