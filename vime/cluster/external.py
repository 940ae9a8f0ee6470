"""Engines that somebody else runs: attached to, validated, given weights, and left running at the end."""

from __future__ import annotations

import time
from argparse import Namespace

from vime.arguments.model_groups import ModelGroup
from vime.cluster.engine import Driven, EngineInfo
from vime.errors import EngineError

_POLL_SECONDS = 1.0
#: Health checks that must fail in a row before a server counts as dead: one may meet a long step.
_FAILURES = 3


class ExternalEngineActor(Driven):
    """Stands for one running server; the counterpart of `EngineActor` for a process that is not ours."""

    def __init__(self, args: Namespace, number: int, group: ModelGroup) -> None:
        from vime.engine.control import EngineControl

        self.args, self.number, self.trained, self.url = args, number, group.trained, group.urls[number]
        self._control = EngineControl(self.url, timeout=args.distributed_timeout_minutes * 60.0)
        self._stopping = False

    def start(self) -> EngineInfo:
        """Wait until the server is healthy, at most ``--vllm-start-timeout`` seconds, and check that it is what training needs."""
        from vime.engine import requirements

        begun = time.monotonic()
        while not self._control.healthy(_POLL_SECONDS):
            if time.monotonic() - begun > self.args.vllm_start_timeout:
                raise EngineError(
                    f"no healthy server after {self.args.vllm_start_timeout:.0f} s",
                    where=self.url,
                    hint="start it, or take its address out of --rollout-external-engine-addrs",
                )
            time.sleep(_POLL_SECONDS)
        config = self._control.configuration()
        if self.trained:
            requirements.check(self.args, config, self.url)
            requirements.check_external(self.args, config, self.url)
        else:
            requirements.check_teacher(self.args, config, self.url)
        workers = self._control.world_size() if self.trained else 0
        return EngineInfo(self.url, 0, workers, time.monotonic() - begun)

    def died(self) -> str | None:
        """Blocks until the server stops answering. How, or None when the run let go of it."""
        failures = 0
        while failures < _FAILURES:
            if self._stopping:
                return None
            healthy = self._control.healthy(self.args.rollout_health_check_timeout)
            failures = 0 if healthy else failures + 1
            time.sleep(_POLL_SECONDS)
        return f"the server at {self.url} does not answer any more"

    def healthy(self, timeout: float) -> bool:
        return self._control.healthy(timeout)

    def stop(self) -> None:
        """Let go: the server is not ours to end."""
        self._stopping = True
