"""Weights through shared memory: the trainer writes a file a bucket in /dev/shm, engines on the same host map it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from vime.errors import MachineError
from vime.files import SHARED_MEMORY
from vime.transport.bucket import Bucket, BucketMeta


def prefix(run_id: str) -> str:
    """How the files of a run begin, so that they can be found after a crash."""
    return f"vime-{run_id}-"


def write(buckets: Iterable[Bucket], run_id: str, version: str) -> Iterator[BucketMeta]:
    """Write each bucket as it comes; yields what engines need to read it. Temporary name, then rename. Raises MachineError when there is no room."""
    for number, bucket in enumerate(buckets):
        path = SHARED_MEMORY / f"{prefix(run_id)}w{version}-{number}"
        temporary = path.with_name(path.name + ".tmp")
        try:
            with open(temporary, "wb") as file:
                file.write(memoryview(bucket.data.numpy()))
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise MachineError(
                f"no weights could be written to shared memory: {error.strerror}",
                where=str(SHARED_MEMORY),
                hint="enlarge it (docker: --shm-size=4g), or use --update-weight-transport gloo",
            ) from error
        temporary.replace(path)
        yield bucket.meta(str(path))


def read(meta: BucketMeta) -> torch.Tensor:
    """The bucket's bytes, mapped, not copied. uint8 [nbytes]; the mapping is private, so writing to it changes nothing."""
    with open(meta.path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        mapped = mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    return torch.frombuffer(mapped, dtype=torch.uint8)


def remove(run_id: str, keep_version: str | None = None) -> list[Path]:
    """Delete this run's files, those of `keep_version` apart. Returns what was deleted."""
    kept = f"{prefix(run_id)}w{keep_version}-" if keep_version is not None else None
    gone = []
    for path in SHARED_MEMORY.glob(prefix(run_id) + "*"):
        if kept is None or not path.name.startswith(kept):
            path.unlink(missing_ok=True)
            gone.append(path)
    return gone
