"""Accelerators by name, with what their software can do; the flags that no code asks for yet tell what a port has to bring. Nothing here imports torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Flag, auto
from pathlib import Path


class Can(Flag):
    """What an accelerator's software gives this runtime."""

    NOTHING = 0
    #: Device memory can be mapped by another process: weights go to colocated engines without a copy over the host.
    MAP_MEMORY = auto()
    #: vLLM's sleep mode frees device memory.
    SLEEP = auto()
    #: Triton compiles for it.
    TRITON = auto()
    #: Attention over packed sequences of different lengths.
    PACKED_ATTENTION = auto()
    #: The driver keeps the stack of the deepest kernel reserved, and can be told not to.
    STACK_LIMIT = auto()
    #: Megatron and vLLM call it "cuda", so that this runtime's device path serves it.
    AS_CUDA = auto()


@dataclass(frozen=True)
class Accelerator:
    """One kind. `files`: patterns below the root of the file system, one match a device. `visible`: variables that narrow what a process
    sees, the first set one holds. `backend`: process group of its devices. `plugin`: package that adds it to torch."""

    name: str
    torch_name: str
    files: str
    visible: tuple[str, ...]
    backend: str
    can: Can
    plugin: str | None = None
    #: Whether this version was run on it.
    tested: bool = False

    def count(self, root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> int:
        """Devices that this process may use, told from files and variables."""
        present = len(list(root.glob(self.files)))
        for variable in self.visible:
            if variable in environ:
                named = [part for part in environ[variable].split(",") if part.strip() not in ("", "-1")]
                return min(present, len(named))
        return present


_FULL = Can.MAP_MEMORY | Can.SLEEP | Can.TRITON | Can.PACKED_ATTENTION

ACCELERATORS: tuple[Accelerator, ...] = (
    Accelerator(
        "cuda", "cuda", "dev/nvidia[0-9]*", ("CUDA_VISIBLE_DEVICES",), "nccl",
        _FULL | Can.STACK_LIMIT | Can.AS_CUDA, tested=True,
    ),
    # Its torch answers to the CUDA names; RCCL to NCCL's. The driver has no stack limit to reset.
    Accelerator(
        "rocm", "cuda", "dev/dri/renderD*", ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"), "nccl", _FULL | Can.AS_CUDA,
    ),
    Accelerator("musa", "musa", "dev/mtgpu.[0-9]*", ("MUSA_VISIBLE_DEVICES",), "mccl", Can.PACKED_ATTENTION, "torch_musa"),
    Accelerator("supa", "supa", "dev/biren/card_*", ("SUPA_VISIBLE_DEVICES",), "succl", Can.NOTHING, "torch_br"),
    Accelerator(
        "npu", "npu", "dev/davinci[0-9]*", ("ASCEND_RT_VISIBLE_DEVICES",), "hccl", Can.SLEEP | Can.PACKED_ATTENTION, "torch_npu",
    ),
)  # fmt: skip


def by_name(name: str) -> Accelerator:
    """Raises KeyError for a name that is none."""
    return {one.name: one for one in ACCELERATORS}[name]


def detect(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> Accelerator | None:
    """The accelerator of this host that this process may use; None when there is none.

    A render node alone is no accelerator: any graphics card has one. ROCm's compute driver adds its own file.
    """
    for one in ACCELERATORS:
        if one.name == "rocm" and not (root / "dev/kfd").exists():
            continue
        if one.count(root, environ):
            return one
    return None
