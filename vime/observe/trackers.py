"""Where metrics go beside the file: TensorBoard and Weights & Biases, each only when asked for."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from vime.errors import MachineError


class Tracker(Protocol):
    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files, written without torch, which the driver never loads."""

    def __init__(self, directory: Path) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise MachineError(
                "--use-tensorboard needs the tensorboard package", hint="pip install tensorboard"
            ) from error
        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._writer = EventFileWriter(str(directory))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    def __init__(self, args: Namespace, directory: Path) -> None:
        try:
            import wandb
        except ImportError as error:
            raise MachineError("--use-wandb needs the wandb package", hint="pip install wandb") from error
        if args.wandb_key:
            wandb.login(key=args.wandb_key, host=args.wandb_host)
        suffix = "" if args.disable_wandb_random_suffix else f"-{args.run_id[-4:]}"
        self._run = wandb.init(
            project=args.wandb_project or "vime",
            entity=args.wandb_team,
            group=args.wandb_group,
            name=(args.wandb_group or "run") + suffix,
            id=args.wandb_run_id,
            mode=args.wandb_mode or "online",
            dir=args.wandb_dir or str(directory),
            resume="allow",
            config={name: value for name, value in vars(args).items() if name != "wandb_key" and _simple(value)},
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics) | {"rollout/step": step}, step=step)

    def close(self) -> None:
        self._run.finish()


def open_trackers(args: Namespace, directory: Path) -> list[Tracker]:
    """The trackers that `args` asks for. Raises MachineError when a package is missing."""
    trackers: list[Tracker] = []
    if args.use_tensorboard:
        name = args.tb_experiment_name or args.run_id
        trackers.append(TensorBoard(directory / "tensorboard" / (args.tb_project_name or "") / name))
    if args.use_wandb:
        trackers.append(WeightsAndBiases(args, directory))
    return trackers


def _simple(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str | list | tuple)
