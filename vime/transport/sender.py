"""The trainer's side of a weight update: one sender a medium, chosen by ``--update-weight-transport``."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any, Protocol

from vime.errors import UsageError
from vime.transport import disk, shm
from vime.transport.bucket import Bucket, BucketMeta, Offer, pack
from vime.transport.stream import Endpoint, connect, layout


class Sender(Protocol):
    """Lives on every trainer rank; the gathering is collective, the rest is rank 0's."""

    def reset(self) -> None:
        """Engines were replaced or failed: forget what connects to them."""
        ...

    def offer(self, trainer: Any, rank: int, version: str, receivers: int, flush_cache: bool) -> Offer | None:
        """Gather the weights and make them ready. The offer on rank 0, None on others."""
        ...

    def send(self) -> None:
        """Serve the offer; every rank calls, and blocks until the receivers have it, where it has a part in that."""
        ...

    def done(self) -> None:
        """Every engine holds the version: free what carried it."""
        ...


class _Unconnected:
    """A medium that keeps nothing between updates."""

    def reset(self) -> None:
        return None


class ShmSender(_Unconnected):
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


class GlooSender(_Unconnected):
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
        if self._sender is not None:
            self._sender.send(self._buckets)

    def done(self) -> None:
        self._buckets, self._sender = [], None


class DiskSender(_Unconnected):
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


class _Streamed:
    """What the media of device memory share: nothing is gathered before `send`, since nothing is held back."""

    def __init__(self, args: Namespace, run_id: str) -> None:
        self.args = args
        self.timeout = args.distributed_timeout_minutes * 60.0
        #: Bytes of device memory that the last update took beside the weights.
        self.staging = 0
        self._layout: tuple[BucketMeta, ...] | None = None

    def _laid_out(self, trainer: Any) -> tuple[BucketMeta, ...]:
        """The buckets, which are the same at every update; collective the first time."""
        if self._layout is None:
            self._layout = layout(trainer.iter_hf_weights(), self.args.update_weight_buffer_size)
        return self._layout


class IpcSender(_Streamed, _Unconnected):
    """Device memory that engines on the same GPUs map."""

    def offer(self, trainer: Any, rank: int, version: str, receivers: int, flush_cache: bool) -> Offer | None:
        from vime.engine.net import own_host

        self._trainer, self._rank = trainer, rank
        metas = self._laid_out(trainer)
        endpoint = Endpoint(own_host(), self.timeout) if rank == 0 else None
        address = trainer.from_first(endpoint.address if endpoint is not None else None)
        self._store = endpoint.store if endpoint is not None else connect(address, self.timeout)
        self._offer = Offer(version, "ipc", metas, address, receivers, flush_cache)
        return self._offer if rank == 0 else None

    def send(self) -> None:
        from vime.transport import ipc

        self.staging = ipc.send(
            self._store,
            self._offer,
            self._trainer.iter_hf_weights(),
            rank=self._rank,
            senders=self._trainer.layout.world_size,
            gpu=ipc.gpu_name(self._trainer.device),
            device=self._trainer.device,
            timeout=self.timeout,
        )

    def done(self) -> None:
        from vime.transport import ipc

        ipc.collect()


class NcclSender(_Streamed):
    """Broadcast to engines on other GPUs, over a communicator that lasts until `reset`."""

    def __init__(self, args: Namespace, run_id: str) -> None:
        super().__init__(args, run_id)
        self._sender: Any = None

    def offer(self, trainer: Any, rank: int, version: str, receivers: int, flush_cache: bool) -> Offer | None:
        from vime.engine.net import own_host
        from vime.transport import nccl

        self._trainer, self._rank = trainer, rank
        metas = self._laid_out(trainer)
        if rank != 0:
            return None
        if self._sender is None or self._sender.receivers != receivers:
            self.reset()
            self._sender = nccl.Sender(own_host(), receivers, trainer.device, self.timeout)
        self._offer = Offer(
            version, "nccl", metas, self._sender.address, receivers, flush_cache, self.args.update_weight_prefetch
        )
        return self._offer

    def send(self) -> None:
        if self._rank != 0:
            _follow(self._trainer)
            return
        try:
            self.staging = self._sender.send(self._offer, self._trainer.iter_hf_weights())
        except BaseException:
            self.reset()
            raise

    def done(self) -> None:
        return None

    def reset(self) -> None:
        if self._sender is not None:
            self._sender.close()
        self._sender = None


SENDERS: dict[str, type] = {
    "shm": ShmSender, "gloo": GlooSender, "disk": DiskSender, "ipc": IpcSender, "nccl": NcclSender,
}  # fmt: skip


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
