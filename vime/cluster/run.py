"""A run put together: session, placement, trainers, engines, rollouts, and everything that records them. `train.py` drives it."""

from __future__ import annotations

import contextlib
import os
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from vime import environment
from vime.arguments.plan import resolve_plan
from vime.cluster.engine import EngineGroup, start_engines
from vime.cluster.folders import absolute_paths, check_folders
from vime.cluster.halves import NoEngines, NoTrainers, NoUpdates, ReplayedRollouts
from vime.cluster.recovery import recover
from vime.cluster.rollout import Rollouts
from vime.cluster.session import Session
from vime.cluster.trainer import TrainerGroup, start_trainers
from vime.cluster.verify import verify_weights
from vime.cluster.weights import WeightUpdater
from vime.engine.patch_stack import installed_stack
from vime.errors import VimeError
from vime.files import append_line
from vime.observe import trace
from vime.observe.console import Console
from vime.observe.derived import waits
from vime.observe.ledger import Ledger
from vime.observe.metrics import MetricsFile, read_metrics
from vime.observe.plot import plot_run
from vime.observe.summary import summary
from vime.observe.trackers import Tracker, open_trackers
from vime.rollout.pool.schedules import schedule_of


@dataclass
class Run:
    """What the loop works with. `total`: steps asked for. `start`: the step that this process begins with."""

    args: Namespace
    session: Session
    trainers: TrainerGroup
    engines: EngineGroup
    rollouts: Rollouts
    weights: WeightUpdater
    console: Console
    metrics: MetricsFile
    ledger: Ledger
    trackers: list[Tracker]
    start: int
    total: int
    begun: float = field(default_factory=time.time)
    answers: list[dict[str, Any]] = field(default_factory=list)
    #: Figures of the present step that are known before it ends.
    noted: dict[str, float] = field(default_factory=dict)
    #: Starts the trainers again; takes how often that was done before, and that once more.
    respawn: Callable[[int], TrainerGroup] = field(kw_only=True)
    recoveries: int = 0
    #: How often a step was gone back to.
    resumed: Counter[int] = field(default_factory=Counter)

    def to_end(self, loop: Callable[[Run], None]) -> None:
        """Run `loop` until its last step is done, also across deaths of the trainer (see `recovery`)."""
        while True:
            try:
                return loop(self)
            except VimeError as error:
                if not recover(self, error):
                    raise

    def train(self, rollout_id: int, samples: Any) -> tuple[dict[str, float], dict[int, int]]:
        """One rollout's updates, on devices that the engines have left when they are shared. See `TrainerGroup.train`."""
        moved = self.weights.turns.to_trainer()
        self.weights.expect()
        learnt, trained = self.trainers.train(rollout_id, samples)
        return moved | learnt, trained

    def trained(self, rollout_id: int, samples: Mapping[int, int], metrics: Mapping[str, Any]) -> None:
        """The step is done: ledger and metrics first, so that no checkpoint holds a step that they do not know. What nobody trained stays planned."""
        if not samples:
            return
        self.metrics.log("step", rollout_id, metrics)
        self.ledger.trained(rollout_id, str(self.weights.version), samples)
        self.rollouts.trained(rollout_id)

    def save(self, rollout_id: int) -> None:
        """The joint checkpoint: data first; the trainer's marker, written last, makes it count."""
        begun = time.time()
        self.rollouts.save(rollout_id)
        self.trainers.save(rollout_id, None)
        self.noted["perf/save_model_time"] = time.time() - begun
        self.rollouts.committed(rollout_id)

    def push_weights(self) -> dict[str, float]:
        """Trainer's weights into every engine; requests go to those engines from then on. Meanwhile none is started."""
        self.rollouts.pause(self.weights.flushes_next)
        update = self.weights.push()
        if self.args.check_weight_update_equal and update.version == self.start + 1:
            self.console.say(str(verify_weights(self.weights, self.args.hf_checkpoint)))
        self.rollouts.set_engines(self.engines.urls, update.version)
        return {
            "perf/update_weights_time": update.seconds,
            "weights/version": update.version,
            "weights/flushed": float(update.flushed),
            "weights/replaced_engines": float(len(update.replaced)),
        }

    def evaluate(self, step: int) -> None:
        """Evaluate after `step` training steps and record it."""
        found, self.answers = self.rollouts.evaluate(step)
        self._record("eval", step, found)
        self.console.say(
            f"eval after {step} steps  " + "  ".join(f"{n} {found[f'eval/{n}']:.3f}" for n in found["datasets"])
        )

    def record_step(self, rollout_id: int, metrics: Mapping[str, Any]) -> None:
        """One finished step: metrics everywhere they go, in the file instead of those that `trained` wrote."""
        metrics = dict(metrics) | waits(metrics) | self.noted
        self.noted.clear()
        self._record("step", rollout_id, metrics)
        self.console.step(rollout_id, metrics)

    def trace(self, rollout_id: int, sample: Any, spans: list[tuple[str, float, float]]) -> None:
        """The life of one sample of the step."""
        append_line(self.session.directory / trace.FILE, trace.life(sample, rollout_id, spans))

    def finish(self) -> None:
        """Plot, closing text. What it says is read back from the files, as anyone can."""
        self.rollouts.close()
        directory = self.session.directory
        steps, evals = read_metrics(directory, "step"), read_metrics(directory, "eval")
        if steps:
            text = summary(steps, evals, self.answers, self.ledger.account())
            self.console.say(f"\n{text}\ncurve    {plot_run(directory)}")
        took = time.time() - self.begun
        self.console.say(
            f"asked for {self.total} steps, did {self.total} ({self.total - self.start} in this run), in {took:.0f} s"
        )

    def _record(self, kind: str, step: int, metrics: Mapping[str, Any]) -> None:
        self.metrics.log(kind, step, metrics)
        numbers = {name: float(v) for name, v in metrics.items() if isinstance(v, int | float)}
        for tracker in self.trackers:
            tracker.log(step, numbers)


@contextlib.contextmanager
def open_run(args: Namespace, prepared: environment.Prepared) -> Iterator[Run]:
    """Start all processes, engines beside the trainer, and end them however the body ends."""
    plan = resolve_plan(args).processes
    begun = time.time()
    if os.environ.get("RAY_ADDRESS"):
        absolute_paths(args)
    patches = installed_stack()
    # The engine's exact identity belongs to a run's artefacts: the same flags on another stack are another run.
    print(
        f"run {args.run_id} in {args.run_dir}: {prepared}; {patches.describe() if patches else 'stock vLLM'}",
        flush=True,
    )
    with contextlib.ExitStack() as stack:
        session = stack.enter_context(Session(args))
        trackers = open_trackers(args, session.directory)
        session.start_ray(plan.devices)
        sizes = [engine.devices for group in args.model_groups for engine in group.engines]
        placement = session.place(plan.trainer_ranks, sizes, plan.devices)
        if (nodes := placement.across()) is not None:
            print(nodes, flush=True)
        check_folders(args, session.other_nodes(placement))
        engines: Any = NoEngines()  # the halves stand in for what a debugging run leaves out
        frozen: dict[str, Any] = {}
        if not args.debug_train_only:
            engines, frozen = start_engines(
                args, placement.engines, session.options, session.directory, placement.shared
            )
        for group in (engines, *frozen.values()):
            stack.callback(group.stop)
        respawn = partial(start_trainers, args, placement.trainers, session.options, session.run_id, placement.shared)
        trainers: Any = NoTrainers(args) if args.debug_rollout_only else respawn(0)
        rollouts: Any = ReplayedRollouts(args) if args.debug_train_only else Rollouts(args, engines)
        infos = []
        if args.offload_rollout:
            # A server measures what is free on its device while it starts, so it starts alone there.
            infos = engines.ready()
            engines.sleep()
        start, _ = trainers.init()
        rollouts.load(start - 1)
        total = rollouts.steps()
        infos = infos or engines.ready()
        rollouts.set_models({name: [info.url for info in group.ready()] for name, group in frozen.items()})
        console = stack.enter_context(Console(total))
        console.say(
            f"{len(placement.trainers)} trainer ranks and {len(infos)} engines are up after {time.time() - begun:.0f} s "
            f"(engines {', '.join(f'{info.seconds:.0f} s' for info in infos)})"
            + (f"; resuming at step {start + 1} of {total} from {args.load}" if start else "")
        )
        metrics, ledger = MetricsFile(session.directory), Ledger(session.directory, start)
        metrics.log(
            "engine",
            start,
            {
                "engine/patch_stack": patches.digest if patches else None,
                "engine/patches": list(patches.patches) if patches else [],
            },
        )
        metrics.log("run", start, {"run/save": args.save, "run/rollout_data_dir": _folder(args)})
        for close in (metrics.close, *(tracker.close for tracker in trackers)):
            stack.callback(close)
        half = args.debug_train_only or args.debug_rollout_only
        weights: Any = NoUpdates(start) if half else WeightUpdater(args, trainers, engines, start, schedule_of(args))
        run = Run(
            args, session, trainers, engines, rollouts, weights, console, metrics, ledger, trackers, start, total, begun,
            respawn=respawn,
        )  # fmt: skip
        stack.callback(lambda: run.ledger.close())
        yield run


def _folder(args: Namespace) -> str | None:
    """Of the durable queue, for `vime audit`."""
    return args.rollout_data_dir if args.rollout_data_transport == "straw" else None


def due(rollout_id: int, interval: int | None, total: int) -> bool:
    """Whether something periodic happens after this step: every `interval` steps, and after the last."""
    return interval is not None and ((rollout_id + 1) % interval == 0 or rollout_id + 1 == total)
