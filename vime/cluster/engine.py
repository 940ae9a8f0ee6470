"""Engines as Ray actors that own a server each, and the group of them as the driver sees it."""

from __future__ import annotations

import contextlib
import logging
from argparse import Namespace
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vime.arguments.model_groups import ModelGroup, served_args
from vime.cluster.placement import Bundle
from vime.cluster.watch import Deaths, wait
from vime.errors import EngineError, VimeError

log = logging.getLogger(__name__)

_STOP_SECONDS = 15.0
#: Of vLLM's sleep for engines whose weights are sent before they wake: 2, keep nothing. A frozen model needs 1.
SLEEP_LEVEL = 2


@dataclass(frozen=True)
class EngineInfo:
    """A healthy server: where it is, its process, how many workers take weights, seconds from start to healthy."""

    url: str
    pid: int
    workers: int
    seconds: float


class Driven:
    """What is asked of a server over its control plane, whoever started it. `number` is the engine's."""

    args: Namespace
    number: int
    _control: Any

    def join_transfer(self, first_worker: int) -> None:
        self._control.init_weight_transfer(first_worker, self.args.distributed_timeout_minutes * 60.0)

    def pause(self, mode: str, clear_cache: bool) -> None:
        """Ahead of an update."""
        self._control.pause(mode, clear_cache)

    def update(self, offer: Any, pause_mode: str) -> None:
        """Take a version of the weights. A failure leaves the server paused, for good: see `EngineGroup.update`."""
        if offer.address is None:
            self._control.update_weights(offer, pause_mode)
            return
        from functools import partial

        from vime.transport.stream import await_sent, report_failure

        try:
            self._control.update_weights(offer, pause_mode, partial(await_sent, offer, self._control.timeout))
        except Exception as error:
            report_failure(offer.address, f"engine {self.number}: {error}")
            raise

    def sleep(self) -> None:
        """Free the device. Weights that the trainer will send again are dropped; others wait on the host."""
        self._control.sleep(SLEEP_LEVEL)

    def wake_up(self, *tags: str) -> None:
        self._control.wake_up(*tags)

    def checksums(self) -> dict[str, str]:
        found: dict[str, str] = self._control.checksums()
        return found


class EngineActor(Driven):
    """Owns one server process. Calls run in threads: `died` waits in one of them for as long as the server lives."""

    def __init__(
        self,
        args: Namespace,
        number: int,
        threads: int,
        log_file: str,
        devices: tuple[int, ...] = (),
        overrides: dict[str, Any] | None = None,
    ) -> None:
        self.args, self.number, self.threads, self.log_file, self.devices = args, number, threads, log_file, devices
        self.overrides = overrides
        self._process: Any = None
        self._control: Any = None

    def start(self) -> EngineInfo:
        """Start the server on this host and wait until it is healthy, at most ``--vllm-start-timeout`` seconds."""
        from vime import environment
        from vime.engine import command, net, requirements
        from vime.engine.process import EngineProcess

        environment.raise_file_limit()
        command.check_kernels(self.args)
        port = net.hold_port(net.own_host())
        self._process = EngineProcess(
            command.server_command(self.args, self.number, self.overrides),
            command.server_environment(self.args, self.threads, self.devices),
            port,
            Path(self.log_file),
        )
        from vime.engine.control import EngineControl  # imports torch, which takes seconds: the server starts meanwhile

        seconds = self._process.wait_healthy(self.args.vllm_start_timeout)
        self._control = EngineControl(self._process.url, timeout=self.args.distributed_timeout_minutes * 60.0)
        if requirements.needs_more_than_log_probs(self.args):
            requirements.check(self.args, self._control.configuration(), self._process.url)
        workers = self._control.world_size()
        return EngineInfo(self._process.url, self._process.pid, workers, seconds)

    def died(self) -> str | None:
        """Blocks until the server ends. How, or None when it was stopped on purpose."""
        return self._process.wait_death() if self._process is not None else None

    def healthy(self, timeout: float) -> bool:
        return self._process.alive and self._control.healthy(timeout)

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop(_STOP_SECONDS / 3)


class EngineGroup:
    """All engines of a model: of the policy, which take weights, or of one that is not `trained`. The death of one is an event in `deaths`."""

    def __init__(
        self,
        args: Namespace,
        make: Callable[[int], Any],
        count: int,
        name: str = "engine",
        trained: bool = True,
        deaths: Deaths | None = None,
    ) -> None:
        self.args, self.name, self.trained = args, name, trained
        self.deaths = deaths or Deaths()
        self._make = make
        self._actors = [make(number) for number in range(count)]
        self._events: list[Any] = [None] * count
        self._starting = [actor.start.remote() for actor in self._actors]
        self.infos: list[EngineInfo] = []
        self._pausing: list[Any] = []

    @property
    def urls(self) -> list[str]:
        return [info.url for info in self.infos]

    @property
    def workers(self) -> int:
        return sum(info.workers for info in self.infos)

    def ready(self) -> list[EngineInfo]:
        """Wait until all are healthy."""
        deadline = self.args.vllm_start_timeout + 60
        self.infos = wait(self._starting, owner=f"{self.name} start", deadline=deadline)
        for number in range(len(self._actors)):
            self._watch(number)
        if self.trained:
            self._join()
        return self.infos

    def pause(self, mode: str, clear_cache: bool) -> None:
        """Begin to pause the engines, ahead of an update by `update`, which ends the pause. They must be idle. Returns at once."""
        self._pausing = [actor.pause.remote(mode, clear_cache) for actor in self._actors]

    def update(self, offer: Any, send: Callable[[], list[Any]], pause_mode: str = "abort") -> list[int]:
        """Give `offer` to every engine while `send` serves it. Returns the engines that failed and must be replaced."""
        import ray

        from vime.transport.stream import report_failure

        deadline = self.args.distributed_timeout_minutes * 60.0 + 30
        # Of one that could not be paused the update says why.
        if self._pausing:
            ray.wait(self._pausing, num_returns=len(self._pausing), timeout=deadline)
        self._pausing = []
        refs = [actor.update.remote(offer, pause_mode) for actor in self._actors]
        sending = send()
        failed = []
        for number, ref in enumerate(refs):
            try:
                wait([ref], owner=f"weight update of engine {number}", deadline=deadline)
            except VimeError as error:
                log.warning("engine %d did not take version %s and is replaced: %s", number, offer.version, error)
                failed.append(number)
                if offer.address is not None:  # where the actor itself is gone nobody else says so
                    report_failure(offer.address, f"engine {number}: {error}")
        if failed:
            # With gloo the sender may have lost a peer: its own error says nothing new.
            with contextlib.suppress(VimeError):
                wait(sending, owner="weight sender", deadline=deadline)
        else:
            wait(sending, owner="weight sender", deadline=deadline)
        return failed

    def checksums(self) -> list[dict[str, str]]:
        """vLLM's hash of each parameter, an engine each."""
        refs = [actor.checksums.remote() for actor in self._actors]
        deadline = self.args.distributed_timeout_minutes * 60.0
        found: list[dict[str, str]] = wait(refs, owner="engines (checksums)", deadline=deadline, deaths=self.deaths)
        return found

    def sleep(self) -> None:
        """Free the devices of all engines."""
        self._each("sleep")

    def wake_up(self, *tags: str) -> None:
        """Give all engines the memory of `tags` back."""
        self._each("wake_up", *tags)

    def _each(self, method: str, *given: Any) -> None:
        refs = [getattr(actor, method).remote(*given) for actor in self._actors]
        wait(
            refs, owner=f"engines ({method})", deadline=self.args.distributed_timeout_minutes * 60.0, deaths=self.deaths
        )

    def replace(self, numbers: list[int]) -> None:
        """End these engines and start new ones. They hold the checkpoint's weights until the next `update`."""
        import ray

        if not numbers:
            return
        for number in numbers:
            self.deaths.forget(self._events[number])
            ray.kill(self._actors[number])  # its server dies with it
            self._actors[number] = self._make(number)
        starting = [self._actors[number].start.remote() for number in numbers]
        found = wait(starting, owner="engine restart", deadline=self.args.vllm_start_timeout + 60)
        for number, info in zip(numbers, found, strict=True):
            self.infos[number] = info
            self._watch(number)
        self._join()

    def dead(self) -> list[int]:
        """Engines whose server has ended."""
        import ray

        gone, _ = ray.wait(self._events, num_returns=len(self._events), timeout=0)
        return [number for number, event in enumerate(self._events) if event in gone]

    def check(self, numbers: Iterable[int], seconds: float = 0.0) -> None:
        """Raises EngineError when the server of one of these has ended, or does within `seconds`."""
        self.deaths.check([self._events[number] for number in numbers], seconds)

    def stop(self) -> None:
        """End all servers; those that do not obey are killed with their actors."""
        import ray

        for event in self._events:
            self.deaths.forget(event)
        stopping = [actor.stop.remote() for actor in self._actors]
        ray.wait(stopping, num_returns=len(stopping), timeout=_STOP_SECONDS)
        for actor in self._actors:
            ray.kill(actor)

    def _watch(self, number: int) -> None:
        self._events[number] = self._actors[number].died.remote()
        self.deaths.watch(self._events[number], f"{self.name} {number}")

    def _join(self) -> None:
        first, refs = 0, []
        for actor, info in zip(self._actors, self.infos, strict=True):
            refs.append(actor.join_transfer.remote(first))
            first += info.workers
        wait(refs, owner="weight transfer set-up", deadline=60)


def start_engines(
    args: Namespace,
    bundles: tuple[tuple[Bundle, ...], ...],
    options: Callable[..., dict[str, Any]],
    directory: Path,
    shared: bool,
) -> tuple[EngineGroup, dict[str, EngineGroup]]:
    """The policy's engines, and those of frozen models by name; one actor an engine. Returns while the servers start.

    `bundles` are those of all engines that are to be started, in the order of ``args.model_groups``.
    """
    import ray

    from vime.cluster.external import ExternalEngineActor
    from vime.environment import cores

    threads = max(1, cores() // max(1, len(bundles)))
    fraction = 0.2 if shared else 1
    remote, running = ray.remote(EngineActor), ray.remote(ExternalEngineActor)
    deaths = Deaths()

    def group(model: ModelGroup, first: int) -> EngineGroup:
        label = "engine" if model.trained else model.name

        def make(number: int) -> Any:
            if model.urls:
                return running.options(max_concurrency=4, num_cpus=0).remote(args, number, model)
            own, spec = bundles[first + number], model.engines[number]
            return remote.options(max_concurrency=4, **options(own[0], fraction, {})).remote(
                served_args(args, model, spec),
                number,
                threads,
                str(directory / "logs" / f"{label}-{number}.log"),
                tuple(bundle.device for bundle in own) if args.device == "cuda" else (),
                dict(spec.overrides),
            )

        if not model.count:
            raise EngineError("no engine to start", hint="give --rollout-num-gpus")
        return EngineGroup(args, make, model.count, label, model.trained, deaths)

    started, first = [], 0
    for model in args.model_groups:
        started.append(group(model, first))
        first += len(model.engines)
    policy, *frozen = started
    return policy, {one.name: one for one in frozen}
