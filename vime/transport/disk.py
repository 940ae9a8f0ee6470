"""Weights as Hugging Face folders in a directory that trainer and engines see: `weight_v000001` and so on."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path

import torch

from vime.errors import EngineError
from vime.transport.bucket import BucketMeta

_CHUNK = 1 << 22


def version_folder(root: Path, version: str) -> Path:
    return root / f"weight_v{int(version):06d}"


def describe(folder: Path) -> tuple[BucketMeta, ...]:
    """Size and CRC-32 of each weight file of `folder`. What tensors it holds, its own header says."""
    return tuple(
        BucketMeta(path.stat().st_size, _checksum(path), (), str(path)) for path in sorted(folder.glob("*.safetensors"))
    )


def read(meta: BucketMeta) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of one file. Raises EngineError when it is not the file that was announced."""
    from safetensors import safe_open

    path = Path(meta.path)
    if not path.is_file():
        raise EngineError(
            "no such weight file", where=meta.path, hint="--update-weight-disk-dir must be one place for all hosts"
        )
    if path.stat().st_size != meta.nbytes or _checksum(path) != meta.checksum:
        raise EngineError("weights arrived damaged: the file has another checksum", where=meta.path)
    with safe_open(meta.path, "pt") as file:
        for name in file.keys():  # noqa: SIM118 - not a mapping
            yield name, file.get_tensor(name)


def remove_older(root: Path, version: str) -> None:
    """Delete the folders of all versions but `version`."""
    for old in root.glob("weight_v*"):
        if old != version_folder(root, version):
            shutil.rmtree(old, ignore_errors=True)


def _checksum(path: Path) -> int:
    value = 0
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            value = zlib.crc32(chunk, value)
    return value
