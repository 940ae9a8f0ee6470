"""Training checkpoints: everything needed to go on as if the run had never stopped, complete or not there at all.

    <root>/iter_0000012/manifest.json           layout, and size and sha256 of every file below
                        model_tp00.pt           this tensor shard's parameters
                        optimizer_tp00_dp00.pt  optimizer state; one a data rank when it is sharded
                        rank_00000.pt           random states
                        run.pt                  rollout id, schedule position, and the caller's blob (data cursor)
    <root>/latest_checkpointed_iteration.txt    the newest complete one, written last

A directory is filled under a temporary name, synced, renamed, and only then named by the marker, so a crash at any point
leaves the previous checkpoint in force. Loading needs the layout (ranks, tensor cut, sharding) that saved.
Files are read with `weights_only`: nothing in a checkpoint is executed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from vime.errors import VimeError
from vime.trainer.parallel import everyone_agrees

log = logging.getLogger(__name__)

MARKER = "latest_checkpointed_iteration.txt"
MANIFEST = "manifest.json"
_DIRECTORY = re.compile(r"iter_(\d{7,})$")
_VERSION = 1


@dataclass(frozen=True)
class ShardLayout:
    """Who saved which file: world size, tensor cut, and whether optimizer state is cut over data ranks."""

    world_size: int
    tensor: int
    optimizer_sharded: bool


@dataclass(frozen=True)
class Place:
    """This rank within the layout."""

    rank: int
    tensor_rank: int
    data_rank: int

    def files(self, layout: ShardLayout) -> dict[str, str]:
        """Kind -> file name that holds this rank's part, whoever wrote it."""
        shard = self.data_rank if layout.optimizer_sharded else 0
        return {
            "model": f"model_tp{self.tensor_rank:02d}.pt",
            "optimizer": f"optimizer_tp{self.tensor_rank:02d}_dp{shard:02d}.pt",
            "rank": f"rank_{self.rank:05d}.pt",
            "run": "run.pt",
        }

    def writes(self, kind: str, layout: ShardLayout) -> bool:
        """Whether this rank is the one that writes that file: of equal copies the first does."""
        match kind:
            case "rank":
                return True
            case "optimizer":
                return layout.optimizer_sharded or self.data_rank == 0
            case "model":
                return self.data_rank == 0
        return self.rank == 0


def save(
    root: str | Path,
    iteration: int,
    place: Place,
    layout: ShardLayout,
    parts: dict[str, Callable[[], Any]],
) -> Path:
    """Write checkpoint `iteration`; a collective. `parts` gives each kind's value, called only where it is written.

    Raises VimeError on every rank when any rank could not write.
    """
    final = _directory(root, iteration)
    staging = final.with_name(f"{final.name}.incomplete")
    if place.rank == 0:
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
    dist.barrier()
    written: dict[str, dict[str, Any]] = {}
    failure = None
    try:
        for kind, name in place.files(layout).items():
            if place.writes(kind, layout):
                written[name] = _write(staging / name, parts[kind]())
    except OSError as error:
        failure = f"rank {place.rank}: {error}"
    results: list[Any] = [None] * layout.world_size
    dist.all_gather_object(results, (written, failure))
    failures = [message for _, message in results if message]
    if failures:
        if place.rank == 0:
            shutil.rmtree(staging, ignore_errors=True)
        raise VimeError(f"checkpoint not written: {failures[0]}", where=str(final), hint="the previous one is intact")
    if place.rank == 0:
        files = {name: facts for part, _ in results for name, facts in part.items()}
        manifest = {"version": _VERSION, "iteration": iteration, "layout": asdict(layout), "files": files}
        _replace_text(staging / MANIFEST, json.dumps(manifest, indent=2, sort_keys=True))
        _sync_directory(staging)
        _move_into_place(staging, final)
        _replace_text(Path(root) / MARKER, str(iteration))
    dist.barrier()
    return final


def find(root: str | Path, layout: ShardLayout, step: int | None = None) -> int | None:
    """The newest complete checkpoint of `root` (or `step`, when given), None when there is none. For rank 0.

    Incomplete, damaged and unmarked directories are passed over and named in the log. Raises VimeError when `step` is
    not usable, or when the layout differs: another layout cannot be loaded.
    """
    root = Path(root)
    present = sorted((int(m[1]) for p in _children(root) if (m := _DIRECTORY.match(p.name))), reverse=True)
    for path in _children(root):
        if path.name.endswith(".incomplete"):
            log.warning("skipping %s: it was never finished", path)
    if step is not None:
        broken = _why_unusable(_directory(root, step)) if step in present else "there is no such checkpoint"
        if broken:
            raise VimeError(f"--ckpt-step {step}: {broken}", where=str(root), hint=f"present: {present}")
        _require_layout(_directory(root, step), layout)
        return step
    marked = _marked(root)
    for iteration in present:
        path = _directory(root, iteration)
        unmarked = marked is None or iteration > marked
        reason = f"not marked complete in {MARKER}" if unmarked else _why_unusable(path)
        if reason is None:
            _require_layout(path, layout)
            return iteration
        log.warning("skipping %s: %s", path, reason)
    return None


def load(
    root: str | Path,
    iteration: int,
    place: Place,
    layout: ShardLayout,
    device: torch.device,
    only: str | None = None,
) -> dict[str, Any]:
    """This rank's parts of a checkpoint, by kind (or `only` one), after checking their sha256. A collective.

    Raises VimeError on every rank when any rank's file is damaged.
    """
    path = _directory(root, iteration)
    expected = json.loads((path / MANIFEST).read_text(encoding="utf-8"))["files"]
    parts: dict[str, Any] = {}
    damaged = None
    for kind, name in place.files(layout).items():
        if only not in (None, kind):
            continue
        if _digest(path / name) != expected[name]["sha256"]:
            damaged = name
            break
        parts[kind] = torch.load(path / name, map_location="cpu", weights_only=True)
    if not everyone_agrees(damaged is None, device):
        raise VimeError(
            f"checkpoint is damaged{f': {damaged} is not what was saved' if damaged else ' on another rank'}",
            where=str(path),
            hint=f"remove the directory, or choose another with --ckpt-step, and write its number to {MARKER}",
        )
    return parts


def random_states() -> dict[str, Any]:
    """States of Python's, NumPy's, torch's and Megatron's generators, as values that `torch.load` reads safely."""
    import numpy
    from megatron.core.tensor_parallel.random import get_cuda_rng_tracker

    name, keys, *rest = numpy.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (str(name), torch.tensor([int(k) for k in keys]), *rest),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "megatron": get_cuda_rng_tracker().get_states(),
    }


def set_random_states(states: dict[str, Any]) -> None:
    """Undo `random_states`."""
    import numpy
    from megatron.core.tensor_parallel.random import get_cuda_rng_tracker

    random.setstate(states["python"])
    name, keys, *rest = states["numpy"]
    numpy.random.set_state((name, keys.numpy().astype("uint32"), *rest))
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
    get_cuda_rng_tracker().set_states(states["megatron"])


def _directory(root: str | Path, iteration: int) -> Path:
    return Path(root) / f"iter_{iteration:07d}"


def _children(root: Path) -> list[Path]:
    return sorted(root.iterdir()) if root.is_dir() else []


def _marked(root: Path) -> int | None:
    try:
        return int((root / MARKER).read_text(encoding="utf-8").strip())
    except (OSError, ValueError):
        return None


def _why_unusable(path: Path) -> str | None:
    """What is wrong with a checkpoint directory, from the manifest and the file sizes; None when nothing is."""
    try:
        files = json.loads((path / MANIFEST).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError) as error:
        return f"no readable {MANIFEST} ({type(error).__name__})"
    for name, facts in files.items():
        file = path / name
        if not file.exists():
            return f"{name} is missing"
        if file.stat().st_size != facts["bytes"]:
            return f"{name} has {file.stat().st_size} bytes of {facts['bytes']}"
    return None


def _require_layout(path: Path, layout: ShardLayout) -> None:
    saved = json.loads((path / MANIFEST).read_text(encoding="utf-8"))["layout"]
    if saved != asdict(layout):
        raise VimeError(
            f"the checkpoint was saved as {saved}, this run is {asdict(layout)}",
            where=str(path),
            hint="resume with the same layout, or start from its --save-hf export with --hf-checkpoint",
        )


def _write(path: Path, value: Any) -> dict[str, Any]:
    with open(path, "wb") as stream:
        torch.save(value, stream)
        stream.flush()
        os.fsync(stream.fileno())
    return {"bytes": path.stat().st_size, "sha256": _digest(path)}


def _digest(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _replace_text(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)
    _sync_directory(path.parent)


def _move_into_place(staging: Path, final: Path) -> None:
    """Rename over an older checkpoint of the same number, which stays until the new one is in place."""
    retired = final.with_name(f"{final.name}.replaced")
    shutil.rmtree(retired, ignore_errors=True)
    if final.exists():
        final.rename(retired)
    staging.rename(final)
    _sync_directory(final.parent)
    shutil.rmtree(retired, ignore_errors=True)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
