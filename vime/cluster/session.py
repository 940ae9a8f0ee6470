"""A run on this host from its first process to its last: identity, record, guardian, Ray, devices."""

from __future__ import annotations

import logging
import os
import shlex
import socket
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from vime.cluster import guardian, processes
from vime.cluster.placement import Bundle, Placement, check_medium, place
from vime.errors import MachineError, UsageError

log = logging.getLogger(__name__)

#: Bytes that the path of a socket may have, and those that Ray adds to its folder's: session_<date>_<time>_<microseconds>_<pid>/sockets/plasma_store
#: with a pid of seven digits.
_SOCKET_PATH, _RAY_ADDS = 107, 64
#: Ray's shared memory. Rollouts of text are small; larger ones spill.
_OBJECT_STORE_BYTES = 256 << 20
#: What Ray's node waits for its helpers; its own 30 seconds are too few on a machine that others load.
_RAY_SECONDS = "180"
#: Python's side waits 30 seconds whatever is set, then says `_SLOW`. What it read is in the machine's memory by then: the next start is faster.
_RAY_ATTEMPTS, _SLOW = 3, "timed out during startup"
_CONNECT_SECONDS = 5.0
_PLACEMENT_SECONDS = 120.0


class Session:
    """Context of a run. Entering makes it known and guarded, `start_ray` connects, leaving ends every process it has."""

    def __init__(self, args: Namespace) -> None:
        self.args = args
        self.run_id: str = args.run_id
        self.directory = Path(args.run_dir)
        self._lifeline = -1
        self._group: Any = None
        # Ray's socket paths may have 107 bytes, so its folder cannot be in the run's.
        self.record = processes.RunRecord(
            run_id=self.run_id,
            driver=os.getpid(),
            driver_start=processes.start_ticks(os.getpid()) or 0,
            directory=str(self.directory.resolve()),
            ray_directory=str(processes.registry() / self.run_id),
            command=shlex.join(sys.argv),
        )

    def __enter__(self) -> Session:
        if (before := next((one for one in processes.records() if one.run_id == self.run_id), None)) is not None:
            if before.alive:
                raise MachineError(
                    f"run {self.run_id} is alive already",
                    hint=f"`vime stop {self.run_id}` ends it, --run-id names another",
                )
            guardian.settle(before)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.record.write()
        os.environ[processes.RUN_VARIABLE] = self.run_id  # every child says whose it is
        self._lifeline = guardian.start(self.record)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import ray

        if ray.is_initialized():
            ray.shutdown()
        left = processes.sweep(self.run_id, grace=5.0)
        if left:
            log.debug("ended %d processes that were left", len(left))
        processes.forget(self.record)
        os.environ.pop(processes.RUN_VARIABLE, None)
        os.close(self._lifeline)

    def start_ray(self, devices: int) -> None:
        """Join the cluster that RAY_ADDRESS names, else start one in this run's processes, as light as Ray can be.

        `devices` is how many the run places; on a CPU they are only a count, which may exceed the cores. Raises MachineError when Ray does not
        start, UsageError when its sockets would have too long a path.
        """
        attached = bool(os.environ.get("RAY_ADDRESS"))
        if not attached and (over := len(os.fsencode(self.record.ray_directory)) + _RAY_ADDS - _SOCKET_PATH) > 0:
            raise UsageError(
                f"--run-id {self.run_id} is {over} characters too long: Ray's sockets lie below {self.record.ray_directory}, and the path of a "
                f"socket may have {_SOCKET_PATH}",
                hint="a shorter --run-id, or VIME_RUNTIME_DIR names a shorter folder",
            )
        if not sys.stderr.isatty():
            os.environ.setdefault("RAY_COLOR_PREFIX", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_enable_metrics_collection", "0")
        os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
        os.environ.setdefault("RAY_raylet_start_wait_time_s", _RAY_SECONDS)
        os.environ.setdefault("RAY_worker_niceness", "0")  # workers are the run; at Ray's 15 any neighbour stops it
        import ray

        common: dict[str, Any] = {"namespace": self.run_id, "logging_level": logging.ERROR, "log_to_driver": True}
        if attached:
            _reach(os.environ["RAY_ADDRESS"])
            # Workers are children of the cluster's nodes, not of this process.
            common["runtime_env"] = {"env_vars": {processes.RUN_VARIABLE: self.run_id}}
        own: dict[str, Any] = {
            "num_cpus": devices + 2,  # the rollout manager, and one to spare
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE_BYTES,
            "_temp_dir": self.record.ray_directory,
            "_system_config": {"metrics_report_interval_ms": 0, "enable_autoscaler_v2": False},
        }
        others = [one.pid for one in processes.processes(self.run_id)]
        for attempt in range(1, _RAY_ATTEMPTS + 1):
            try:
                ray.init(**({"address": "auto"} if attached else own), **common)
                return
            except Exception as error:  # Ray raises plain Exceptions
                said = (str(error).strip().splitlines() or [type(error).__name__])[0]
                if attached or _SLOW not in said or attempt == _RAY_ATTEMPTS:
                    hint = (
                        "is the cluster of RAY_ADDRESS up?"
                        if attached
                        else "a busy machine may be too slow for Ray's 30 seconds: give the command again"
                    )
                    raise MachineError(f"Ray did not start: {said}", hint=hint) from error
            log.warning(
                "Ray took over 30 seconds to start, which is its limit: once more (%d of %d)",
                attempt + 1,
                _RAY_ATTEMPTS,
            )
            processes.sweep(self.run_id, grace=0, spare=others)

    def reserve(self, devices: int) -> list[Bundle]:
        """Reserve `devices` and say where they are. Raises MachineError when the cluster has not that many."""
        import ray
        from ray.util.placement_group import placement_group

        kind = "GPU" if self.args.device == "cuda" else "CPU"
        each = {"GPU": 1, "CPU": 1} if kind == "GPU" else {"CPU": 1}
        self._group = placement_group([each] * devices, strategy="PACK")
        ready, _ = ray.wait([self._group.ready()], timeout=_PLACEMENT_SECONDS)
        if not ready:
            there = int(ray.cluster_resources().get(kind, 0))
            raise MachineError(
                f"{devices} {kind}s are needed, the cluster has {there}", hint="see --dry-run for the plan"
            )
        hosts = self._hosts()
        numbers = self._device_numbers(devices) if kind == "GPU" else list(range(devices))
        return [Bundle(index, hosts[index], number) for index, number in enumerate(numbers)]

    def _hosts(self) -> dict[int, str]:
        """The address of the node of each bundle that is on a living one."""
        import ray
        from ray.util.placement_group import placement_group_table

        nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
        where = placement_group_table(self._group)["bundles_to_node_id"]
        return {index: nodes[node] for index, node in where.items() if node in nodes}

    def other_nodes(self, placement: Placement) -> dict[str, str]:
        """Id and address of the nodes, the driver's apart, that processes of the run are on."""
        import ray

        used = {bundle.host for bundle in (*placement.trainers, *(one for own in placement.engines for one in own))}
        here = ray.get_runtime_context().get_node_id()
        nodes = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]
        return {node["NodeID"]: node["NodeManagerAddress"] for node in nodes if node["NodeManagerAddress"] in used}

    def options(self, bundle: Bundle, fraction: float, environment: dict[str, str]) -> dict[str, Any]:
        """Ray's options for an actor on `bundle` that counts for `fraction` of its device. Raises MachineError when its node is lost:
        where Ray has found room elsewhere, files and addresses of the run would still be the lost node's."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        if bundle.host and bundle.host != self._hosts().get(bundle.index):
            raise MachineError(
                f"node {bundle.host} is lost, and a device of this run with it",
                hint="the same command with --load resumes on the nodes that are left or were added",
            )
        return {
            "num_cpus": fraction,
            "num_gpus": fraction if self.args.device == "cuda" else 0,
            "runtime_env": {"env_vars": environment} if environment else None,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=self._group,
                placement_group_bundle_index=bundle.index,
            ),
        }

    def place(self, trainer_ranks: int, engines: Sequence[int], devices: int) -> Placement:
        """Raises MachineError and UsageError as `reserve` and `placement` do."""
        placement = place(self.reserve(devices), trainer_ranks, engines, self.args.colocate)
        check_medium(self.args.update_weight_transport, placement)
        return placement

    def _device_numbers(self, devices: int) -> list[int]:
        """The GPU that Ray gave each bundle, asked from inside it."""
        import ray

        @ray.remote
        def number() -> int:
            return int(float(ray.get_gpu_ids()[0]))

        refs = [number.options(**self.options(Bundle(i, "", 0), 0.01, {})).remote() for i in range(devices)]
        return list(ray.get(refs, timeout=_PLACEMENT_SECONDS))


Options = Callable[[Bundle, float, dict[str, str]], dict[str, Any]]


def _reach(address: str) -> None:
    """Raises MachineError unless something listens at ``host:port``: Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    if not port.isdigit():  # "auto" and the like, which Ray resolves
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise MachineError(
            f"no Ray cluster answers at RAY_ADDRESS={address}: {error.strerror or error}",
            hint="start it, or unset RAY_ADDRESS for a cluster of this run's own",
        ) from error
