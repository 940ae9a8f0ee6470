"""Generation workers as Ray actors, one or more a node, that answer the groups of the rollout manager's pool."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from vime.data.protocol import Group


class GenerationWorker:
    """One process with its own client, tokenizer, hooks and rewards. `number` of `count`."""

    def __init__(self, args: Namespace, number: int, count: int) -> None:
        from vime import environment

        environment.raise_file_limit()
        from vime.data.tokenizer import load_tokenizer
        from vime.engine.client import HttpEngineClient
        from vime.engine.router import open_router
        from vime.hooks import check_hooks
        from vime.rollout.context import RolloutContext, Slots, install

        check_hooks(args)
        self.args, self.name, self.count = args, f"{number}", count
        self.router = open_router(args, f"router-{number}.log")
        self.context = RolloutContext(args, HttpEngineClient(self.router), load_tokenizer(args.hf_checkpoint))
        self.context.slots = Slots(share(self.context.slots.places, args.n_samples_per_prompt, number, count))
        install(self.context)
        self._task: tuple[int, Any] | None = None
        environment.freeze_heap()

    def run(self, address: tuple[str, int], key: str) -> None:
        """Answer groups until the manager lets go."""
        from vime.rollout.loop import run_async
        from vime.rollout.workers.worker import work

        capacity = self.context.slots.places // self.args.n_samples_per_prompt
        seconds = self.args.rollout_queue_lease_seconds
        run_async(work(address, key, self.name, capacity, seconds, self._answer, self._obey))

    async def _answer(self, step: int, group: Group) -> Group:
        if self._task is None or self._task[0] != step:
            self._task = step, self.context.group_task(step)
        answered: Group = await self._task[1].run(group)
        return answered

    def _obey(self, word: str, *given: Any) -> Any:
        """An order of the desk (see `vime.rollout.workers.fleet`); what is to be awaited."""
        context = self.context
        match word, *given:
            case "engines", urls, version:
                self.router.set_engines(urls)
                context.serving_version = version
            case "models", models:
                for name, urls in models.items():
                    context.models[name].set_engines(urls)
            case "open", is_open, version:
                context.serving_version = version
                (context.resume if is_open else context.pause)()
            case "aborting", value:
                context.aborting = value
            case ["abort"]:
                return context.client.abort(None)
            case ["idle"]:
                return context.idle()
            case ["paused"]:
                return None
        return None


def share(places: int, group: int, number: int, count: int) -> int:
    """Of `places` for requests, those of worker `number` of `count`: whole groups of `group` requests, as even as can be."""
    groups = places // group
    return (groups // count + (number < groups % count)) * group


def start_workers(args: Namespace, address: tuple[str, int], key: str) -> tuple[list[Any], list[Any]]:
    """Actors, spread over the nodes of the cluster, and a reference each that ends when the worker does. They end with the manager."""
    import ray

    from vime.environment import thread_environment

    count = args.rollout_generation_workers
    options: dict[str, Any] = {
        "num_cpus": 0,
        "scheduling_strategy": "SPREAD",
        "runtime_env": {"env_vars": thread_environment(1)},
    }
    remote = ray.remote(GenerationWorker)
    actors = [remote.options(**options).remote(args, number, count) for number in range(count)]
    return actors, [actor.run.remote(address, key) for actor in actors]
