"""The folder of a run's durable rollouts: opened once, by one process at a time.

    <folder>/pool.json        who made it, and what cannot change afterwards
             owner.lock       held by the process that writes; the kernel lets go of it however that process ends
             current.json     the branch that is being worked on
             raw/             Straw's packs: every prompt, answer and plan, of all branches
             queues/          a journal a branch

Straw lets a second coordinator in and fences the first at its next write; the lock keeps the second one out.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import uuid
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vime.durable import codec
from vime.durable.faults import told
from vime.durable.files import read_json, write_json
from vime.errors import DataError, MachineError, UsageError

CODECS = ("bytes.v1", "json.v1", "tensor.v1", codec.NAME, codec.MANY)
_FORMAT = 1
_PACK_BYTES = 1 << 30

Fault = Callable[[str], None]


@dataclass(frozen=True)
class Identity:
    """`pool` is unique: a checkpoint says with it which queue it belongs to."""

    pool: str
    run_id: str
    profile: str
    online_gc: bool
    format: int = _FORMAT


class Pool:
    """Owner of a folder. `results` and `control` are two writers, so that small records that live long do not keep packs of answers.

    Raises MachineError when another process owns the folder or it cannot be written, UsageError when the flags contradict how it was made.
    """

    def __init__(self, folder: Path, args: Namespace, fault: Fault | None = None) -> None:
        self.folder = folder.resolve()
        self._fault = fault
        with told(self.folder, "opening the rollout queue"):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = _own(self.folder / "owner.lock")
            try:
                self.identity = _identify(self.folder, args)
                declaration = read_declaration(args)
                size = (args.rollout_queue_segment_mib << 20) if args.rollout_queue_segment_mib else _PACK_BYTES
                self.results = self.open_store(declaration, size)
                self.control = self.open_store(declaration, size)
            except BaseException:
                os.close(self._lock)
                raise

    def open_store(self, declaration: dict[str, Any] | None, pack_bytes: int) -> Any:
        from straw import SharedFilesystemStore
        from straw.backend import FilesystemBackend

        backend = FilesystemBackend(
            self.folder, profile=self.identity.profile, declaration=declaration, fault=self._fault
        )
        return SharedFilesystemStore(
            self.folder,
            self.identity.run_id,
            backend=backend,
            codecs=CODECS,
            segment_target_bytes=pack_bytes,
            online_gc=self.identity.online_gc,
        )

    @property
    def current(self) -> str | None:
        """The branch of work in force; None in a new pool."""
        record = read_json(self.folder / "current.json")
        return None if record is None else str(record["branch"])

    def set_current(self, branch: str) -> None:
        write_json(self.folder / "current.json", {"branch": branch})

    def branches(self) -> list[str]:
        """All branches, oldest first."""
        return sorted(path.stem for path in (self.folder / "branches").glob("*.json"))

    def new_branch(self, facts: dict[str, Any]) -> str:
        """Record a branch and say its name. It counts once `set_current` names it."""
        name = f"b{len(self.branches()):04d}"
        (self.folder / "branches").mkdir(exist_ok=True)
        write_json(self.folder / "branches" / f"{name}.json", facts)
        return name

    def facts(self, branch: str) -> dict[str, Any]:
        """What `new_branch` recorded."""
        return read_json(self.folder / "branches" / f"{branch}.json") or {}

    def close(self) -> None:
        """Seal the packs and let go of the folder. Errors of Straw are not raised: what counts has been committed."""
        from straw.errors import QueueError

        if self._lock < 0:
            return
        for store in (self.results, self.control):
            with contextlib.suppress(QueueError, OSError):
                store.close()
        os.close(self._lock)
        self._lock = -1


def read_declaration(args: Namespace) -> dict[str, Any] | None:
    """The declared mount options of --rollout-storage-declaration. Raises UsageError when they are not what a queue needs."""
    if args.rollout_storage_profile == "local":
        return None
    path = Path(args.rollout_storage_declaration)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"--rollout-storage-declaration cannot be read: {error}", where=str(path)) from error
    from straw.backend import FilesystemBackend

    try:
        FilesystemBackend(path.parent, profile=args.rollout_storage_profile, declaration=found)
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"--rollout-storage-declaration: {error}",
            where=str(path),
            hint="mount with these options and declare them, client_version and durability_description in this file",
        ) from error
    return dict(found)


def _own(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another process"
        os.close(descriptor)
        raise MachineError(
            f"the rollout queue is in use by {owner}",
            where=str(path.parent),
            hint="`vime ps` lists runs, `vime stop` ends one",
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return descriptor


def _identify(folder: Path, args: Namespace) -> Identity:
    path = folder / "pool.json"
    record = read_json(path)
    if record is None:
        found = Identity(
            uuid.uuid4().hex, args.rollout_queue_run_id, args.rollout_storage_profile, args.rollout_queue_online_gc
        )
        write_json(path, asdict(found))
        return found
    if record.get("format") != _FORMAT:
        raise DataError(f"queue of format {record.get('format')}; this vime reads {_FORMAT}", where=str(path))
    found = Identity(**record)
    for flag, made, asked in (
        ("--rollout-queue-run-id", found.run_id, args.rollout_queue_run_id),
        ("--rollout-storage-profile", found.profile, args.rollout_storage_profile),
    ):
        if made != asked:
            raise UsageError(
                f"{flag} is {asked}, the queue was made with {made}",
                where=str(path),
                hint="give it as it was, or another --rollout-data-dir",
            )
    if args.rollout_queue_online_gc and not found.online_gc:
        raise UsageError(
            "--rollout-queue-online-gc must be given from the first start of a queue",
            where=str(path),
            hint="what was written before has no owners; leave it out, or start another --rollout-data-dir",
        )
    return found
