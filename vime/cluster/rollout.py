"""The rollout manager: one Ray actor that holds the data source, the engine client and the rollout functions."""

from __future__ import annotations

import logging
import os
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vime.cluster.engine import EngineGroup
from vime.cluster.generation import start_workers
from vime.cluster.watch import wait
from vime.errors import EngineError
from vime.files import append_line
from vime.rollout import loop

log = logging.getLogger(__name__)

#: Seconds that a step's generation may take at most, whatever its requests do: each has its own deadline (--rollout-request-timeout).
_MARGIN = 60.0
_EXAMPLES = 3
#: In which Ray notices that an actor on another node does not answer.
_DEATH_SECONDS = 5.0


class RolloutManager:
    """Lives as long as the run. Rollout functions block; the driver asks for one thing at a time."""

    def __init__(self, args: Namespace) -> None:
        from vime import environment

        environment.raise_file_limit()
        from vime.data.tokenizer import load_tokenizer
        from vime.engine.client import HttpEngineClient
        from vime.engine.router import open_router
        from vime.hooks import check_hooks, load_hook
        from vime.rollout.context import RolloutContext, install
        from vime.rollout.pool.store import open_store
        from vime.rollout.workers.desk import Desk
        from vime.rollout.workers.fleet import FleetContext

        self.args = args
        check_hooks(args)
        self.router = open_router(args, "router.log")
        client, tokenizer = HttpEngineClient(self.router), load_tokenizer(args.hf_checkpoint)
        #: Where generation workers get their groups; None without any: then this process answers them.
        self.desk = Desk(args.rollout_queue_lease_seconds) if args.rollout_generation_workers > 1 else None
        self.context = (
            RolloutContext(args, client, tokenizer)
            if self.desk is None
            else FleetContext(args, client, tokenizer, self.desk)
        )
        install(self.context)
        self._open_source = load_hook("data_source_path", args.data_source_path)
        self.source = self._open_source(args)
        self.store = self.context.store = open_store(args, self.source)
        self._rollout = load_hook("rollout_function_path", args.rollout_function_path)
        self._evaluate = load_hook("eval_function_path", args.eval_function_path)

    def steps(self) -> int:
        """Rollout steps of the run: ``--num-rollout``, or what ``--num-epoch`` passes over the prompts make."""
        if self.args.num_rollout is not None:
            return int(self.args.num_rollout)
        return int(self.args.num_epoch * len(self.source)) // int(self.args.rollout_batch_size)

    def set_engines(self, urls: Sequence[str], version: int) -> None:
        """These servers, holding weights `version`, answer from now on; a pool that stood still goes on."""
        self.router.set_engines(urls)
        self.context.serving_version = version
        self._tell("engines", list(urls), version)
        if self.context.pool is not None:
            loop.call_on_loop(self.context.pool.resume)

    def set_models(self, urls: dict[str, list[str]]) -> None:
        """The servers of the frozen models, by name."""
        for name, own in urls.items():
            self.context.models[name].set_engines(own)
        self._tell("models", urls)

    def pause(self, flushes: bool) -> None:
        """The weights are about to change: start no request until `set_engines`, and let the running ones be as the schedule says."""
        if self.context.pool is not None:
            loop.run_async(self.context.pool.pause(flushes))

    def drop_engines(self, left: Sequence[str]) -> None:
        """Only these of the servers still answer."""
        self.router.set_engines(left)
        self._tell("engines", list(left), self.context.serving_version)

    def open_desk(self) -> tuple[tuple[str, int], str]:
        """Address and key for generation workers."""
        from vime.engine.net import own_host

        assert self.desk is not None
        return loop.run_async(self.desk.open(own_host())), self.desk.key

    def await_workers(self) -> None:
        """Wait until all generation workers are there."""
        assert self.desk is not None
        loop.run_async(self.desk.joined(self.args.rollout_generation_workers))

    def _tell(self, word: str, *given: Any) -> None:
        if self.desk is not None:
            loop.call_on_loop(self.desk.tell, word, *given)

    def generate(self, rollout_id: int) -> tuple[list[Any], tuple[dict[str, float], Any]]:
        """The samples of one step, flat; beside them metrics and the first sample, which are all that the driver looks at."""
        from vime.hooks import load_hook
        from vime.observe import spans
        from vime.rollout.types import flatten, train_output

        start = time.perf_counter()
        output = train_output(
            self._rollout(self.args, rollout_id, self.source, evaluation=False), self.args.rollout_function_path
        )
        elapsed = time.perf_counter() - start
        samples = flatten(output.samples)
        if self.args.trace_samples:
            append_line(
                Path(self.args.run_dir) / spans.FILE, spans.record(rollout_id, samples, self.args.trace_samples)
            )
        self._export(rollout_id, output.samples)
        tokens = sum(sample.response_length for sample in samples)
        # Of a pool that ran before anybody asked, only it knows how long the samples took.
        took = output.metrics.get("rollout/pool/seconds", elapsed)
        sent = self.store.refer(rollout_id, samples) if self.args.routing_replay_prefetch_microbatches else samples
        measured = {"perf/rollout_time": elapsed, "perf/rollout_tokens_per_sec": tokens / took}
        if (path := self.args.custom_rollout_log_function_path) and load_hook("custom_rollout_log_function_path", path)(
            rollout_id, self.args, samples, output.metrics, elapsed
        ):
            return sent, (measured, samples[0])
        return sent, (measured | output.metrics, samples[0])

    def evaluate(self, rollout_id: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Metrics of all evaluation data sets, under "datasets" their names, and the first answers of the first."""
        from vime.hooks import load_hook
        from vime.rollout.types import eval_output

        result = eval_output(
            self._evaluate(self.args, rollout_id, self.source, evaluation=True), self.args.eval_function_path
        )
        self._export(f"eval_{rollout_id}", [list(entry["samples"]) for entry in result.data.values()])
        option = "custom_eval_rollout_log_function_path"
        if (path := self.args.custom_eval_rollout_log_function_path) and load_hook(option, path)(
            rollout_id, self.args, result.data, result.metrics
        ):
            return {"datasets": []}, []
        means = {
            f"eval/{name}": sum(entry["rewards"]) / len(entry["rewards"])
            for name, entry in result.data.items()
            if entry["rewards"]
        }
        first = next(iter(result.data.values()))["samples"] if result.data else []
        answers = [
            {"prompt": s.prompt, "response": s.response, "label": s.label, "reward": s.reward}
            for s in first[:_EXAMPLES]
        ]
        return result.metrics | means | {"datasets": list(result.data)}, answers

    def _export(self, rollout_id: int | str, groups: list[list[Any]]) -> None:
        """With --save-debug-rollout-data: the samples of a step or an evaluation as an archive."""
        from vime.durable.archive import INDEX, RolloutArchive

        if self.args.save_debug_rollout_data is None:
            return
        path = self.args.save_debug_rollout_data.format(rollout_id=rollout_id)
        if path.endswith(INDEX):
            self.store.archive(Path(path), rollout_id, groups)
        else:
            RolloutArchive.save(path, rollout_id, [sample for group in groups for sample in group])

    def trained(self, rollout_id: int) -> None:
        """The trainer has taken the batch of this step."""
        loop.call_on_loop(self.store.trained, rollout_id)
        self.store.sync(rollout_id - 1)

    def save(self, rollout_id: int) -> None:
        loop.call_on_loop(self.store.save, rollout_id)
        self.store.sync()

    def committed(self, rollout_id: int) -> None:
        """The trainer's checkpoint of this step is complete."""
        self.store.committed(rollout_id)

    def load(self, rollout_id: int) -> None:
        from vime import environment

        loop.call_on_loop(self.store.load, rollout_id)
        environment.freeze_heap()

    def ledger(self) -> str | None:
        """The data source's own account, where it keeps one."""
        return self.source.ledger().line() if hasattr(self.source, "ledger") else None

    def restart(self, rollout_id: int) -> None:
        """The trainer went back to the checkpoint of this step: begin anew after it, in this process."""
        from vime.rollout.pool.store import open_store

        self.close()
        self.source = self._open_source(self.args)
        self.store = self.context.store = open_store(self.args, self.source)
        self.load(rollout_id)

    def close(self) -> None:
        """The run is over: what is in flight goes back to the store."""
        if self.context.pool is not None:
            loop.run_async(self.context.pool.close())
            self.context.pool = None
        self.store.close()


class Rollouts:
    """The manager as the driver sees it. Waiting for it also watches the engines.

    With ``--use-fault-tolerance`` a step goes on with the engines that are left; the dead are replaced before the next weight update.
    """

    def __init__(self, args: Namespace, engines: EngineGroup) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from vime.environment import thread_environment

        self.args, self.engines = args, engines
        # The second thread takes a new list of engines while the first one generates.
        options = {"num_cpus": 0, "max_concurrency": 2, "runtime_env": {"env_vars": thread_environment(1)}}
        # On the driver's node: prompts were looked through there, and the queue belongs there.
        here = ray.get_runtime_context().get_node_id()
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(here, soft=False)
        self.actor = ray.remote(RolloutManager).options(**options).remote(args)
        #: Kept: an actor that nobody refers to ends.
        self.workers = self._start_workers() if args.rollout_generation_workers > 1 else []
        attempts = 1 + args.rollout_request_retries
        self._deadline = args.rollout_request_timeout * attempts + args.rm_timeout + _MARGIN

    def _start_workers(self) -> list[Any]:
        """They import and load what the manager does, so they may take as long as servers."""
        import ray

        deadline = self.args.vllm_start_timeout
        opened = wait([self.actor.open_desk.remote()], owner="rollout manager", deadline=deadline)[0]
        workers, ends = start_workers(self.args, *opened)
        joined = self.actor.await_workers.remote()
        first, _ = ray.wait([joined, *ends], num_returns=1, timeout=deadline)
        wait(first or [joined], owner="start of the generation workers", deadline=1.0)
        return workers

    def generate(self, rollout_id: int) -> tuple[Any, dict[str, float], Any]:
        """A reference to the samples, which go straight to the trainers, metrics, and the first sample."""
        samples, rest = self.actor.generate.options(num_returns=2).remote(rollout_id)
        metrics, first = self._wait(rest, "rollout")
        return samples, metrics, first

    def evaluate(self, rollout_id: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        found: tuple[dict[str, Any], list[dict[str, Any]]] = self._wait(
            self.actor.evaluate.remote(rollout_id), "evaluation"
        )
        return found

    def set_engines(self, urls: Sequence[str], version: int) -> None:
        self._wait(self.actor.set_engines.remote(list(urls), version), "rollout manager")

    def set_models(self, urls: dict[str, list[str]]) -> None:
        self._wait(self.actor.set_models.remote(urls), "rollout manager")

    def pause(self, flushes: bool) -> None:
        self._wait(self.actor.pause.remote(flushes), "rollouts before the weight update")

    def trained(self, rollout_id: int) -> None:
        self._wait(self.actor.trained.remote(rollout_id), "rollout manager")

    def steps(self) -> int:
        return int(self._wait(self.actor.steps.remote(), "rollout manager"))

    def save(self, rollout_id: int) -> None:
        self._wait(self.actor.save.remote(rollout_id), "data source")

    def restart(self, rollout_id: int) -> None:
        self._wait(self.actor.restart.remote(rollout_id), "rollout manager")

    def committed(self, rollout_id: int) -> None:
        self._wait(self.actor.committed.remote(rollout_id), "data source")

    def close(self) -> None:
        self._wait(self.actor.close.remote(), "data source")

    def load(self, rollout_id: int) -> None:
        self._wait(self.actor.load.remote(rollout_id), "data source")

    def ledger(self) -> str | None:
        found: str | None = self._wait(self.actor.ledger.remote(), "data source")
        return found

    def _wait(self, ref: Any, owner: str) -> Any:
        survive = self._go_on_without if self.args.use_fault_tolerance else None
        try:
            return wait([ref], owner=owner, deadline=self._deadline, deaths=self.engines.deaths, survive=survive)[0]
        except EngineError:
            if os.environ.get("RAY_ADDRESS") and survive is None:
                # That an engine's node is lost says more than the requests that failed for it.
                self.engines.check(range(len(self.engines.urls)), _DEATH_SECONDS)
            raise

    def _go_on_without(self, reason: str) -> bool:
        if not reason.startswith(f"{self.engines.name} "):
            return False  # a frozen model: nobody else answers for it
        dead = self.engines.dead()
        left = [url for number, url in enumerate(self.engines.urls) if number not in dead]
        log.warning("%s; %d engines are left", reason.splitlines()[0], len(left))
        if left:
            self.actor.drop_engines.remote(left)
        return bool(left)
