"""Runs of one half: rollouts that nobody trains on (--debug-rollout-only), and training on rollouts of before (--debug-train-only).

The loop is the same; what the other half would do is left out by these.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from vime.cluster.weights import Update
from vime.durable.archive import Replay
from vime.errors import UsageError


class NoTrainers:
    """In the place of `TrainerGroup`: takes every batch and learns nothing."""

    def __init__(self, args: Namespace) -> None:
        self.args = args

    def init(self) -> tuple[int, Any]:
        return int(self.args.start_rollout_id or 0), None

    def train(self, rollout_id: int, samples: Any) -> tuple[dict[str, float], dict[int, int]]:
        return {}, {}

    def lost(self) -> list[int]:
        return []

    def save(self, rollout_id: int, blob: Any) -> str:
        raise UsageError("--debug-rollout-only has no weights to save", hint="leave --save-interval out")

    save_hf = save


class NoTurns:
    """In the place of `Turns`: one half alone shares no device."""

    def to_trainer(self) -> dict[str, float]:
        return {}


class NoUpdates:
    """In the place of `WeightUpdater`: the engines keep the checkpoint's weights, or there are none."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.flushes_next = False
        self.turns = NoTurns()
        self.unsure: list[int] = []

    def expect(self) -> None:
        pass

    def push(self) -> Update:
        return Update(self.version, 0.0, 0, False, ())


class NoEngines:
    """In the place of `EngineGroup`."""

    urls: tuple[str, ...] = ()
    name = "no engine"

    def ready(self) -> list[Any]:
        return []

    def stop(self) -> None:
        pass


class ReplayedRollouts:
    """In the place of `Rollouts`: the samples of each step come from archives. Nothing is written anywhere."""

    def __init__(self, args: Namespace) -> None:
        if args.load_debug_rollout_data is None:
            raise UsageError(
                "--debug-train-only needs --load-debug-rollout-data", hint="files that --save-debug-rollout-data wrote"
            )
        self.args = args
        self.replay = Replay(args.load_debug_rollout_data, args.num_rollout, args.load_debug_rollout_data_subsample)

    def generate(self, rollout_id: int) -> tuple[Any, dict[str, float], Any]:
        """A reference to the samples, metrics, and the first sample."""
        import ray

        from vime.rollout.metrics import rollout_metrics

        began = time.perf_counter()
        samples = self.replay.samples(rollout_id)
        groups: dict[Any, list[Any]] = {}
        for sample in samples:
            groups.setdefault(sample.group_index, []).append(sample)
        seconds = time.perf_counter() - began
        metrics = rollout_metrics(self.args, list(groups.values()), {}, seconds=seconds, serving=None)
        return ray.put(samples), metrics, samples[0]

    def steps(self) -> int:
        return int(self.args.num_rollout)

    def load(self, rollout_id: int) -> None:
        pass

    def set_models(self, urls: dict[str, list[str]]) -> None:
        pass

    def set_engines(self, urls: Sequence[str], version: int) -> None:
        pass

    def pause(self, flushes: bool) -> None:
        pass

    def trained(self, rollout_id: int) -> None:
        pass

    def save(self, rollout_id: int) -> None:
        pass

    def committed(self, rollout_id: int) -> None:
        pass

    def close(self) -> None:
        pass
