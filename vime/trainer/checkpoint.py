"""Training checkpoints: everything needed to go on as if the run had never stopped, complete or not there at all.

    <root>/iter_0000012/manifest.json       layout, and size and sha256 of every file below
                        model_tp00.pt       the weights of one part of the model (tensor, expert and pipeline cut)
                        optimizer_tp00.pt   its optimizer state; optimizer_00003.pt, one a rank, when ranks share it
                        rank_00000.pt       random states
                        run.pt              rollout id, schedule position, and the caller's blob (data cursor)
                        *.distcp, ...       with --ckpt-format torch_dist, the weights once more (see `torch_dist`)
    <root>/latest_checkpointed_iteration.txt    the newest complete one, written last

A directory is filled under a temporary name, synced, renamed, and only then named by the marker, so a crash at any point
leaves the previous checkpoint in force. Names in the files are those of the whole model, so that another layout can load
them (see `reshard`). Files are read with `weights_only`: nothing in a checkpoint is executed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import re
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from vime.convert.cut import Cut
from vime.errors import VimeError
from vime.trainer.parallel import Layout

log = logging.getLogger(__name__)

MARKER = "latest_checkpointed_iteration.txt"
MANIFEST = "manifest.json"
_DIRECTORY = re.compile(r"iter_(\d{7,})$")
_VERSION = 2


@dataclass(frozen=True)
class Place:
    """A rank of a layout, and which files it fills. `sharded`: ranks share the optimizer state."""

    rank: int
    layout: Layout
    sharded: bool

    @cached_property
    def cut(self) -> Cut:
        """What of the model this rank holds."""
        return self.layout.cut(self.rank)

    @property
    def part(self) -> str:
        """Its name."""
        return part_name(self.cut)

    @property
    def first(self) -> bool:
        """Whether no earlier rank holds the same part."""
        return all(part_name(self.layout.cut(rank)) != self.part for rank in range(self.rank))

    def files(self) -> dict[str, str]:
        """Kind -> name, of the files that this rank writes: of equal copies the first rank does."""
        found = {"rank": f"rank_{self.rank:05d}.pt"}
        if self.first:
            found["model"] = f"model_{self.part}.pt"
        if self.sharded or self.first:
            found["optimizer"] = self.optimizer_file
        if self.rank == 0:
            found["run"] = "run.pt"
        return found

    @property
    def optimizer_file(self) -> str:
        return f"optimizer_{self.rank:05d}.pt" if self.sharded else f"optimizer_{self.part}.pt"


def part_name(cut: Cut) -> str:
    """tp00, and what else divides the model."""
    extra = (("ep", cut.expert), ("etp", cut.expert_tensor), ("pp", cut.stage))
    same = cut.expert_tensor == cut.tensor
    return f"tp{cut.tensor.rank:02d}" + "".join(
        f"_{name}{share.rank:02d}" for name, share in extra if share.size > 1 and not (name == "etp" and same)
    )


class Writing:
    """A checkpoint that is being written, on a thread of its own; `finish` makes it count."""

    def __init__(
        self, root: str | Path, iteration: int, place: Place, parts: dict[str, Any], beside: Sequence[str]
    ) -> None:
        self._beside = beside
        self._root, self._iteration, self._place = Path(root), iteration, place
        self.final = _directory(root, iteration)
        self._staging = self.final.with_name(f"{self.final.name}.incomplete")
        self._written: dict[str, dict[str, Any]] = {}
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._write, args=(parts,), name="checkpoint", daemon=True)
        self._thread.start()

    def _write(self, parts: dict[str, Any]) -> None:
        try:
            for kind, name in self._place.files().items():
                self._written[name] = _write(self._staging / name, parts[kind])
            for name in self._beside:
                self._written[name] = _facts(self._staging / name)
        except OSError as error:
            self._failure = f"rank {self._place.rank}: {error}"

    def finish(self) -> Path:
        """Wait for the files of all ranks, then name the checkpoint complete; a collective.

        Raises VimeError on every rank when any rank could not write.
        """
        self._thread.join()
        results: list[Any] = [None] * self._place.layout.world_size
        dist.all_gather_object(results, (self._written, self._failure))
        failures = [message for _, message in results if message]
        if failures:
            if self._place.rank == 0:
                shutil.rmtree(self._staging, ignore_errors=True)
            raise VimeError(
                f"checkpoint not written: {failures[0]}", where=str(self.final), hint="the previous one is intact"
            )
        if self._place.rank == 0:
            files = {name: facts for part, _ in results for name, facts in part.items()}
            layout = {"layout": asdict(self._place.layout), "sharded": self._place.sharded}
            manifest = {"version": _VERSION, "iteration": self._iteration, "files": files} | layout
            _replace_text(self._staging / MANIFEST, json.dumps(manifest, indent=2, sort_keys=True))
            _sync_directory(self._staging)
            _move_into_place(self._staging, self.final)
            _replace_text(self._root / MARKER, str(self._iteration))
        dist.barrier()
        return self.final


def begin(
    root: str | Path,
    iteration: int,
    place: Place,
    parts: dict[str, Callable[[], Any]],
    beside: Callable[[Path], Sequence[str]] | None = None,
) -> Writing:
    """Start to write checkpoint `iteration`; a collective. `parts` gives each kind's value, called only where it is written.

    What they give must not change until `Writing.finish`. `beside`, a collective, is given the folder first and returns the names
    of the files that this rank has put there.
    """
    staging = _directory(root, iteration)
    staging = staging.with_name(f"{staging.name}.incomplete")
    if place.rank == 0:
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
    dist.barrier()
    names = beside(staging) if beside is not None else ()
    return Writing(root, iteration, place, {kind: parts[kind]() for kind in place.files()}, names)


def find(root: str | Path, step: int | None = None) -> int | None:
    """The newest complete checkpoint of `root` (or `step`, when given), None when there is none. For rank 0.

    Incomplete, damaged and unmarked directories are passed over and named in the log. Raises VimeError when `step` is
    not usable.
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
        return step
    marked = _marked(root)
    for iteration in present:
        path = _directory(root, iteration)
        unmarked = marked is None or iteration > marked
        reason = f"not marked complete in {MARKER}" if unmarked else _why_unusable(path)
        if reason is None:
            return iteration
        log.warning("skipping %s: %s", path, reason)
    return None


class Saved:
    """A complete checkpoint, read file by file; each is checked against its sha256 first.

    Raises VimeError for a file that is not what was saved.
    """

    def __init__(self, root: str | Path, iteration: int) -> None:
        self.path = _directory(root, iteration)
        manifest = json.loads((self.path / MANIFEST).read_text(encoding="utf-8"))
        self.layout, self.sharded = Layout(**manifest["layout"]), bool(manifest["sharded"])
        self._files: dict[str, Any] = manifest["files"]
        self._read: dict[str, Any] = {}

    @cached_property
    def run(self) -> dict[str, Any]:
        found: dict[str, Any] = self.read("run.pt")
        return found

    @cached_property
    def places(self) -> list[Place]:
        """The ranks that saved."""
        return [Place(rank, self.layout, self.sharded) for rank in range(self.layout.world_size)]

    def read(self, name: str) -> Any:
        if name not in self._read:
            file = self.path / name
            if name not in self._files or _digest(file) != self._files[name]["sha256"]:
                raise VimeError(
                    f"checkpoint is damaged: {name} is not what was saved",
                    where=str(self.path),
                    hint=f"remove the directory, or choose another with --ckpt-step, and write its number to {MARKER}",
                )
            self._read[name] = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        return self._read[name]


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
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        files, version = manifest["files"], manifest["version"]
    except (OSError, ValueError, KeyError) as error:
        return f"no readable {MANIFEST} ({type(error).__name__})"
    if version != _VERSION:
        return f"written in format {version}, this is {_VERSION}"
    for name, facts in files.items():
        file = path / name
        if not file.exists():
            return f"{name} is missing"
        if file.stat().st_size != facts["bytes"]:
            return f"{name} has {file.stat().st_size} bytes of {facts['bytes']}"
    return None


def _write(path: Path, value: Any) -> dict[str, Any]:
    with open(path, "wb") as stream:
        torch.save(value, stream)
        stream.flush()
        os.fsync(stream.fileno())
    return _facts(path)


def _facts(path: Path) -> dict[str, Any]:
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
