"""Trainer ranks as Ray actors, and the group of them as the driver sees it."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vime.cluster.placement import Bundle
from vime.cluster.watch import wait
from vime.engine import net

#: A device is shared by a trainer rank and an engine when colocated; Ray only counts, it does not enforce.
SHARED_FRACTION = 0.4
#: Seconds for a rank to say that it lives.
_PING_SECONDS = 10.0


class TrainerActor:
    """One rank. Ray starts it in a process whose environment has the thread settings already."""

    def __init__(self, args: Namespace, rank: int, world_size: int, run_id: str) -> None:
        from vime import environment

        self.prepared = environment.prepare()
        # The long imports happen while engines start. `Trainer` is named where it is used.
        import vime.trainer.trainer  # noqa: F401

        self.args, self.rank, self.world_size, self.run_id = args, rank, world_size, run_id
        self._sender: Any = None
        self._staged: list[Any] = []

    def open_rendezvous(self) -> tuple[str, int]:
        """Rank 0 opens the store that all ranks meet at, on a port that is held from the start. Returns its address."""
        host = net.own_host()
        self._store = net.open_rendezvous(host, self.world_size)
        return host, int(self._store.port)

    def init(self, address: tuple[str, int] | None) -> tuple[int, Any]:
        """Join the others and load weights. Returns the rollout to start at and the blob of the checkpoint, if any."""
        if address is not None:
            os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = address[0], str(address[1])
            # The store exists already: torch must join it instead of opening one.
            os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
            # By itself gloo takes the address that the host's name stands for, which on many machines no other node reaches.
            if (interface := net.interface_of(net.own_host())) is not None:
                os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        from vime import environment
        from vime.trainer.trainer import Trainer

        # Ray shows each actor its own GPU only, as the first.
        device = "cuda:0" if self.args.device == "cuda" else "cpu"
        self.trainer = Trainer(self.args, rank=self.rank, world_size=self.world_size, device=device)
        start = self.trainer.init()
        environment.freeze_heap()
        return start, self.trainer.restored

    def train(self, rollout_id: int, samples: list[Any]) -> tuple[dict[str, float], dict[int, int]]:
        """Metrics of one rollout's steps, and what this rank trained: sample index -> group index.

        Before the first step trainer and engine must agree (``--parity-threshold``), or nothing is trained.
        """
        batch = self.trainer.split(self.trainer.train_data(samples))[self.trainer.data_rank]
        used = [i for step in batch.steps for micro in step.micro_batches for i in micro]
        indices, groups = batch.data["sample_indices"], batch.data["group_index"]
        metrics = self.trainer.train(rollout_id, batch)
        return metrics, {indices[i]: groups[i] for i in used} if self.trainer.first_of_part else {}

    def save(self, rollout_id: int, blob: Any) -> str:
        return str(self.trainer.save(rollout_id, blob))

    def save_hf(self, directory: str) -> None:
        self.trainer.save_hf(directory)

    def offer(self, version: str, receivers: int, flush_cache: bool, engines: list[str]) -> Any:
        """Collect the weights of all ranks and make them ready to send; collective. The offer on rank 0, None elsewhere.

        `engines` are the addresses of the engines that will take them.
        """
        from vime.hooks import load_hook
        from vime.transport.disk import version_folder
        from vime.transport.sender import open_sender

        if self._sender is None:
            self._sender = open_sender(self.args, self.run_id)
        self.trainer.served_version = version
        offer = self._sender.offer(self.trainer, self.rank, version, receivers, flush_cache)
        if path := self.args.custom_update_weight_post_write_path:
            folder = str(version_folder(Path(self.args.update_weight_disk_dir), version))
            load_hook("custom_update_weight_post_write_path", path)(self.args, folder, engines)
        return offer

    def send(self) -> None:
        """Serve the present offer, where the medium needs a sender."""
        self._sender.send()

    def sent(self) -> None:
        """All engines have the present version: drop what was made for sending it."""
        self._sender.done()

    def forget_engines(self) -> None:
        """Engines were replaced: connections to them are of no use."""
        if self._sender is not None:
            self._sender.reset()

    def offload(self, keep_weights: bool) -> dict[str, float]:
        """Move what this rank holds on its device to the host; the weights stay for the sender when `keep_weights`."""
        return self.trainer.offload(keep_weights)

    def onload(self) -> dict[str, float]:
        """Everything back on the device."""
        return self.trainer.onload()

    def ping(self) -> int:
        return os.getpid()


class TrainerGroup:
    """All ranks. Methods block until every rank is done and return what rank 0 says."""

    def __init__(self, args: Namespace, actors: list[Any]) -> None:
        self.args = args
        self.actors = actors
        self.deadline = args.distributed_timeout_minutes * 60.0

    def init(self) -> tuple[int, Any]:
        address = self._first("open_rendezvous") if len(self.actors) > 1 else None
        return self._all("init", address)[0]

    def train(self, rollout_id: int, samples: Any) -> tuple[dict[str, float], dict[int, int]]:
        """Metrics, and sample index -> group index of all that was trained. Raises VimeError, with the first layer that differs,
        when trainer and engine disagree."""
        start = time.perf_counter()
        ranks = self._all("train", rollout_id, samples)
        trained = {sample: group for _, part in ranks for sample, group in part.items()}
        return ranks[0][0] | {"perf/actor_train_wall_time": time.perf_counter() - start}, trained

    def save(self, rollout_id: int, blob: Any) -> str:
        return self._all("save", rollout_id, blob)[0]

    def save_hf(self, directory: str) -> None:
        self._all("save_hf", directory)

    def offer(self, version: str, receivers: int, flush_cache: bool, engines: list[str]) -> Any:
        return self._all("offer", version, receivers, flush_cache, engines)[0]

    def send(self) -> list[Any]:
        """A reference a rank: sending runs beside receiving."""
        return [actor.send.remote() for actor in self.actors]

    def sent(self) -> None:
        self._all("sent")

    def forget_engines(self) -> None:
        self._all("forget_engines")

    def offload(self, keep_weights: bool = False) -> dict[str, float]:
        """Free the devices. What it took and freed, of rank 0."""
        return self._all("offload", keep_weights)[0]

    def onload(self) -> dict[str, float]:
        return self._all("onload")[0]

    def lost(self) -> list[int]:
        """Ranks whose process is gone. One that is busy counts as alive."""
        import ray

        pings = [actor.ping.remote() for actor in self.actors]
        done, _ = ray.wait(pings, num_returns=len(pings), timeout=_PING_SECONDS)
        gone = []
        for rank, ping in enumerate(pings):
            if ping in done:
                try:
                    ray.get(ping)
                except ray.exceptions.RayActorError:
                    gone.append(rank)
        return gone

    def kill(self) -> None:
        """End all ranks: those that live wait for the dead in a collective."""
        import ray

        for actor in self.actors:
            ray.kill(actor)

    def _first(self, method: str, *args: Any) -> Any:
        return wait([getattr(self.actors[0], method).remote(*args)], owner="trainer rank 0", deadline=self.deadline)[0]

    def _all(self, method: str, *args: Any) -> list[Any]:
        refs = [getattr(actor, method).remote(*args) for actor in self.actors]
        return wait(refs, owner=f"trainer ({method})", deadline=self.deadline)


def start_trainers(
    args: Namespace,
    bundles: tuple[Bundle, ...],
    options: Callable[..., dict[str, Any]],
    run_id: str,
    shared: bool,
    generation: int = 0,
) -> TrainerGroup:
    """One actor a bundle; returns while they start. `options` gives Ray's options for a bundle (see `session`), `generation` counts restarts."""
    import ray

    from vime.environment import cores, thread_environment

    threads = max(1, cores() // max(1, len(bundles)))
    # As engines have it (`command.server_environment`): with another way to share memory NCCL would wait for ever.
    nccl = {"NCCL_CUMEM_ENABLE": os.environ.get("NCCL_CUMEM_ENABLE", "0")} if args.device == "cuda" else {}
    given = {str(k): str(v) for k, v in (args.train_env_vars or {}).items()}
    environment = thread_environment(threads) | nccl | given
    remote = ray.remote(TrainerActor)
    fraction = SHARED_FRACTION if shared else 1
    actors = [
        remote.options(
            name=f"trainer-{rank}" + f"-{generation}" * (generation > 0), **options(bundle, fraction, environment)
        ).remote(args, rank, len(bundles), run_id)
        for rank, bundle in enumerate(bundles)
    ]
    return TrainerGroup(args, actors)
