"""Rollouts on disk: exported by a run, replayed by another that only trains, converted into each other.

    NAME.pt           self-contained: {"format", "rollout_id", "source", "samples": [a dict a sample]}; slime's older files, which have
                      `rollout_id` and `samples` alone, are read too
    NAME.straw.json   an index of records in a queue's packs, which it keeps from being freed: {"format", "rollout_id", "pool", "run_id",
                      "folder", "records": [{"group", "ref"}], "samples"}

A replay changes nothing of its source: records are read where they are, none is written again. Files are read with `weights_only`: nothing in
them is executed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vime.data.protocol import Group
from vime.data.state import portable, save_state
from vime.durable.files import read_json, write_json
from vime.errors import DataError
from vime.sample import Sample

INDEX = ".straw.json"
_FORMAT = 1


@dataclass(frozen=True)
class Source:
    """Whose samples these are. `pool` and `run_id` of the queue that holds them; empty for a file that holds them itself."""

    pool: str = ""
    run_id: str = ""
    folder: str = ""


class RolloutArchive:
    """The samples of one rollout in a file of either kind. Opening checks what the file says of itself, not yet the samples."""

    def __init__(self, path: str | Path) -> None:
        """Raises DataError when there is no such file, or it is no archive."""
        self.path = Path(path)
        self.is_index = str(path).endswith(INDEX)
        facts = self._read_index() if self.is_index else self._read_file()
        try:
            self.rollout_id = int(facts["rollout_id"]) if str(facts["rollout_id"]).lstrip("-").isdigit() else None
            self.source = Source(facts["pool"], facts["run_id"], facts["folder"]) if self.is_index else Source()
            self._records: list[dict[str, Any]] = facts["records"] if self.is_index else []
            self._samples: list[dict[str, Any]] = [] if self.is_index else list(facts["samples"])
            self._count = int(facts["samples"]) if self.is_index else len(self._samples)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"is no rollout archive: {error!r} is missing or wrong", where=str(path)) from error

    def __len__(self) -> int:
        """Samples."""
        return self._count

    def keys(self) -> list[tuple[int | None, int | None]]:
        """(group index, sample index) of every sample."""
        return [(one.group_index, one.index) for one in self.load_samples()]

    def load_samples(self) -> list[Sample]:
        """All samples, checked. Raises DataError naming the archive when one cannot be read or its lengths disagree."""
        try:
            found = [one for group in self._groups() for one in group] if self.is_index else self._from_file()
        except DataError as error:
            raise DataError(
                error.title, where=f"{self.path}: {error.where}" if error.where else str(self.path), hint=error.hint
            ) from error
        except Exception as error:  # of Straw, of a sample's check, of a field that is no such thing
            raise DataError(f"a sample cannot be read: {error}", where=str(self.path)) from error
        if len(found) != self._count:
            raise DataError(f"holds {len(found)} samples, says {self._count}", where=str(self.path))
        return found

    def export_pt(self, path: str | Path) -> None:
        """The same rollout as one self-contained file."""
        save_pt(Path(path), self.rollout_id if self.rollout_id is not None else -1, self.load_samples(), self.source)

    def release(self) -> None:
        """Remove an index and let its records be freed; the queue must not be in use. Of a self-contained file: remove it."""
        if self.is_index:
            store = self._store()
            if store_has_owners(self._folder()):
                store.release(owner_of(self.path))
            store.close()
        self.path.unlink()

    @staticmethod
    def save(path: str | Path, rollout_id: int | str, samples: Sequence[Sample]) -> None:
        """Write a self-contained file. An index is written by the run that owns the queue (`DurableStore.archive`)."""
        save_pt(Path(path), rollout_id, samples, Source())

    def _read_index(self) -> dict[str, Any]:
        found = read_json(self.path)
        if found is None:
            raise DataError("there is no such archive", where=str(self.path))
        if found.get("format") != _FORMAT:
            raise DataError(
                f"archive of format {found.get('format')!r}; this vime reads {_FORMAT}", where=str(self.path)
            )
        return found

    def _read_file(self) -> dict[str, Any]:
        import numpy as np
        import torch
        from numpy._core import multiarray
        from torch.serialization import safe_globals

        if not self.path.is_file():
            raise DataError("there is no such archive", where=str(self.path))
        # What a NumPy array is made of; none of these runs what a file says.
        arrays = [np.ndarray, np.dtype, multiarray._reconstruct, multiarray.scalar]
        arrays += [type(np.dtype(code)) for code in np.typecodes["AllInteger"] + np.typecodes["AllFloat"] + "?"]
        try:
            with safe_globals(arrays):
                found = torch.load(self.path, weights_only=True, map_location="cpu")
        except Exception as error:  # torch raises whatever its unpickler met
            raise DataError(
                f"cannot be read without running code from it: {str(error).splitlines()[0]}",
                where=str(self.path),
                hint="archives hold plain values, arrays and tensors only; write it again with --save-debug-rollout-data",
            ) from error
        if not isinstance(found, dict) or "samples" not in found or "rollout_id" not in found:
            raise DataError("is no rollout archive: rollout_id and samples are missing", where=str(self.path))
        return found

    def _from_file(self) -> list[Sample]:
        return [Sample.from_dict(_arrays(state)) for state in self._samples]

    def _groups(self) -> Iterator[Group]:
        from vime.durable.queue import load_group

        store = self._store()
        for record in self._records:
            yield load_group(store, record["ref"])

    def _folder(self) -> Path:
        folder = Path(self.source.folder)
        return folder if folder.is_absolute() else (self.path.parent / folder)

    def _store(self) -> Any:
        from straw import SharedFilesystemStore

        from vime.durable.pool import CODECS

        folder = self._folder()
        identity = read_json(folder / "pool.json")
        if identity is None or identity["pool"] != self.source.pool:
            raise DataError("the queue that the index refers to is gone or another", where=str(folder))
        return SharedFilesystemStore(folder, self.source.run_id, codecs=CODECS, online_gc=identity["online_gc"])


def save_pt(path: Path, rollout_id: int | str, samples: Sequence[Sample], source: Source) -> None:
    """A self-contained archive."""
    facts = {"format": _FORMAT, "rollout_id": rollout_id, "source": asdict(source)}
    save_state(path, facts | {"samples": [_tensors(sample.to_dict()) for sample in samples]})


def write_index(
    path: Path, rollout_id: int | str, source: Source, records: Sequence[tuple[int | None, Any]], samples: int
) -> None:
    """An index of (group index, reference) in the packs of `source`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    listed = [{"group": group, "ref": asdict(ref)} for group, ref in records]
    write_json(
        path, {"format": _FORMAT, "rollout_id": rollout_id, "samples": samples, "records": listed} | asdict(source)
    )


def owner_of(path: Path) -> str:
    """The name under which an index keeps its records."""
    return f"archive:{path.resolve()}"


def store_has_owners(folder: Path) -> bool:
    """Whether records of this queue are freed at all."""
    return bool((read_json(folder / "pool.json") or {}).get("online_gc"))


class Replay:
    """The archives of a training-only run: one a step, from the template of --load-debug-rollout-data.

    Indices must all come from one queue: samples of two runs are not one history.
    """

    def __init__(self, template: str, steps: int, subsample: float | None = None) -> None:
        """Raises DataError when a step has no archive, or two come from different queues."""
        self.template, self.subsample = template, subsample
        self._sources: set[Source] = set()
        missing = [step for step in range(steps) if not Path(template.format(rollout_id=step)).is_file()]
        if missing:
            raise DataError(
                f"no archive for {len(missing)} of {steps} steps, first {missing[0]}",
                where=template.format(rollout_id=missing[0]),
                hint="--num-rollout is the number of archives; {rollout_id} in --load-debug-rollout-data stands for the step",
            )

    def samples(self, step: int) -> list[Sample]:
        """The samples of `step`; with a share to keep, that many whole groups, the first ones."""
        archive = RolloutArchive(self.template.format(rollout_id=step))
        if "{rollout_id" in self.template and archive.rollout_id not in (None, step):
            raise DataError(f"is the archive of rollout {archive.rollout_id}, not {step}", where=str(archive.path))
        if archive.is_index:
            self._sources.add(archive.source)
            if len({(one.pool, one.run_id) for one in self._sources}) > 1:
                raise DataError("comes from another queue than the archives before it", where=str(archive.path))
        samples = archive.load_samples()
        if self.subsample is None:
            return samples
        groups = list(dict.fromkeys(sample.group_index for sample in samples))
        kept = set(groups[: max(1, round(len(groups) * self.subsample))])
        return [sample for sample in samples if sample.group_index in kept]


def _tensors(state: dict[str, Any]) -> dict[str, Any]:
    """Arrays as tensors: what torch reads without being told that it may. Their names are kept, so that they come back as arrays."""
    import numpy as np

    arrays = [name for name, value in state.items() if isinstance(value, np.ndarray)]
    return portable(state) | ({"_arrays": arrays} if arrays else {})


def _arrays(state: dict[str, Any]) -> dict[str, Any]:
    names = state.get("_arrays", ())
    return {name: value.numpy() if name in names else value for name, value in state.items() if name != "_arrays"}
