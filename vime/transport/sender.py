"""The trainer's side of a weight update: one sender a medium, chosen by ``--update-weight-transport``."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any, Protocol

from vime.errors import UsageError
from vime.transport import disk, shm
from vime.transport.bucket import Bucket, Offer, pack


class Sender(Protocol):
    """Lives on every trainer rank; the gathering is collective, the rest is rank 0's."""

    def offer(self, trainer: Any, rank: int, version: str, receivers: int, flush_cache: bool) -> Offer | None:
        """Gather the weights and make them ready. The offer on rank 0, None on others."""
        ...

    def send(self) -> None:
        """Serve the offer; blocks until the receivers have it, where the medium has a sender at all."""
        ...

    def done(self) -> None:
        """Every engine holds the version: free what carried it."""
        ...


class ShmSender:
    """Files in shared memory, for engines on the trainer's host."""

    def __init__(self, args: Namespace, run_id: str) -> None:
        self.args, self.run_id = args, run_id

    def offer(self, trainer: Any, rank: int, version: str, receivers: int, flush_cache: bool) -> Offer | None:
        if rank != 0:
            _follow(trainer)
            return None
        buckets = pack(trainer.iter_hf_weights(), self.args.update_weight_buffer_size)
        metas = tuple(shm.write(buckets, self.run_id, version))
        shm.remove(self.run_id, keep_version=version)
        return Offer(version, "shm", metas, flush_cache=flush_cache)

    def send(self) -> None:
        return None

    def done(self) -> None:
        # The engines copied what they need; a replaced engine gets an offer of its own.
        shm.remove(self.run_id)


class GlooSender:
    """Broadcast over sockets, to engines anywhere."""

    def __init__(self, args: Namespace, run_id: str) -> None:
        self.args = args
        self._buckets: list[Bucket] = []
        self._sender: Any = None

    def offer(self, trainer: Any, rank: int, version: str, receivers: int, flush_cache: bool) -> Offer | None:
        from vime.engine.net import own_host
        from vime.transport import gloo

        if rank != 0:
            _follow(trainer)
            return None
        self._buckets = list(pack(trainer.iter_hf_weights(), self.args.update_weight_buffer_size))
        self._sender = gloo.Sender(own_host(), receivers, self.args.distributed_timeout_minutes * 60.0)
        metas = tuple(bucket.meta() for bucket in self._buckets)
        return Offer(version, "gloo", metas, self._sender.address, receivers, flush_cache)

    def send(self) -> None:
        self._sender.send(self._buckets)

    def done(self) -> None:
        self._buckets, self._sender = [], None


class DiskSender:
    """Files that any host may read."""

    def __init__(self, args: Namespace, run_id: str) -> None:
        self.args = args
        self._root = Path(args.update_weight_disk_dir)
        self._version = ""

    def offer(self, trainer: Any, rank: int, version: str, receivers: int, flush_cache: bool) -> Offer | None:
        self._version, folder = version, disk.version_folder(self._root, version)
        if rank == 0:
            self._root.mkdir(parents=True, exist_ok=True)
        trainer.save_hf(folder)
        return Offer(version, "disk", disk.describe(folder), flush_cache=flush_cache) if rank == 0 else None

    def send(self) -> None:
        return None

    def done(self) -> None:
        if not self.args.update_weight_disk_keep_files:
            disk.remove_older(self._root, self._version)


SENDERS: dict[str, type] = {"shm": ShmSender, "gloo": GlooSender, "disk": DiskSender}


def open_sender(args: Namespace, run_id: str) -> Sender:
    """The sender for ``--update-weight-transport``. Raises UsageError for one that is not built."""
    name = args.update_weight_transport
    if name not in SENDERS:
        raise UsageError(f"--update-weight-transport {name} is not built yet", hint=f"one of {', '.join(SENDERS)}")
    return SENDERS[name](args, run_id)  # type: ignore[no-any-return]


def _follow(trainer: Any) -> None:
    """Take part in the gathering, keep nothing."""
    for _ in trainer.iter_hf_weights():
        pass
