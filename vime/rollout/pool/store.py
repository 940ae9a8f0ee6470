"""Where the pool's work is kept: prompts that it claims, groups that it finishes, the batch of each step.

A task's life, in the words of queues::

    claim --> leased --accept--> ready --plan--> planned in step N --trained--> gone
      ^         |  `------drop--> gone, with a reason
      `-release-'                                        (finished and dropped for good; every end is one of the two)

The pool does not know whether a store survives the process. Every method may be called again with the same ids: a second call changes nothing.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from vime.data.protocol import DataSource, Group, SettlingDataSource
from vime.data.state import portable, save_state
from vime.errors import UsageError
from vime.sample import Sample, Status


@dataclass(frozen=True)
class Task:
    """One prompt with all its answers. `task_id` is the group index; where a user's data source gives none, a negative number of ours."""

    task_id: int
    group: Group

    @property
    def finished(self) -> bool:
        """Whether it needs no engine any more: it came back from a store that had kept its answers."""
        return all(
            (sample.finished and sample.reward is not None) or sample.status is Status.FAILED for sample in self.group
        )


@dataclass(frozen=True)
class Batch:
    """What step `step` trains, in the order of the plan."""

    step: int
    tasks: tuple[Task, ...]

    @property
    def groups(self) -> list[Group]:
        return [task.group for task in self.tasks]


@dataclass(frozen=True)
class Counts:
    """Tasks by where they are. `planned`: in a batch that is not yet trained."""

    leased: int
    ready: int
    planned: int


class Store(Protocol):
    """Called from one thread, `sync`, `committed` and `close` from any."""

    def claim(self, count: int) -> list[Task]:
        """Lease `count` tasks: released ones and those found finished after a restart first, then new prompts.

        Fewer than `count` when the store leaves the rest to other workers. Raises DataError when the data is exhausted.
        """
        ...

    def release(self, task_id: int, group: Group, reason: str) -> None:
        """The lease ends without a result (nack). `group` is what the next claim shall get: with its prefix, or as a fresh prompt."""
        ...

    def accept(self, task_id: int, group: Group) -> None:
        """The lease ends with a result (ack): `group` is finished, scored, passed the filters, and waits for a batch."""
        ...

    def drop(self, task_id: int, step: int, reason: str) -> None:
        """The task will never be trained; `step` is the one that was being filled ("filter:<why>", "failed:<why>")."""
        ...

    def ready(self) -> list[Task]:
        """Accepted tasks that no plan has, in the order of acceptance."""
        ...

    def plan(self, step: int, task_ids: Sequence[int]) -> Batch:
        """Fix the batch of `step` before a hook or the trainer sees it. A step that has a plan keeps it, whatever is asked."""
        ...

    def planned(self, step: int) -> Batch | None:
        """The plan of `step`, if there is one: after a restart it is trained as it was."""
        ...

    def trained(self, step: int) -> None:
        """The trainer has taken step `step`; its batch need not be handed out again by this process."""
        ...

    def save(self, step: int) -> None:
        """A checkpoint is being written that has trained everything up to `step`; it is complete only when the trainer's marker is there."""
        ...

    def load(self, step: int | None) -> None:
        """Continue after `step` of the checkpoint in --load. None, or -1, is the start."""
        ...

    def committed(self, step: int) -> None:
        """The checkpoint of `step` is complete: the trainer's marker is there."""
        ...

    def archive(self, path: Path, rollout_id: int | str, groups: Sequence[Group]) -> None:
        """Write an index of `groups` that refers to the store (``*.straw.json``)."""
        ...

    def refer(self, step: int, samples: Sequence[Sample]) -> list[Sample]:
        """The samples that step `step` trains, with what was recorded of them left in the store where it has that (see `vime.sample.Stored`)."""
        ...

    def sync(self, step: int | None = None) -> None:
        """Wait until all that was said is as safe as the store can make it; with `step`, all until that step was trained."""
        ...

    def counts(self) -> Counts: ...

    def close(self) -> None:
        """Nothing is asked of it any more."""
        ...


class MemoryStore:
    """Keeps everything in this process, in front of a data source. A checkpoint holds what is finished and not yet trained."""

    def __init__(self, args: Namespace, source: DataSource) -> None:
        self.args, self.source = args, source
        self._leased: dict[int, Task] = {}
        self._ready: dict[int, Task] = {}
        self._plans: dict[int, Batch] = {}
        self._restored: dict[int, Group] = {}
        self._nameless = 0

    def claim(self, count: int) -> list[Task]:
        tasks = [self._task(group) for group in self.source.get_samples(count)] if count else []
        self._leased |= {task.task_id: task for task in tasks}
        return tasks

    def release(self, task_id: int, group: Group, reason: str) -> None:
        if self._leased.pop(task_id, None) is not None:
            self.source.add_samples([group])

    def accept(self, task_id: int, group: Group) -> None:
        if self._leased.pop(task_id, None) is not None:
            self._ready[task_id] = Task(task_id, group)

    def drop(self, task_id: int, step: int, reason: str) -> None:
        if (task := self._leased.pop(task_id, None)) is not None:
            self._settle(step, [task.group], reason)

    def ready(self) -> list[Task]:
        return list(self._ready.values())

    def plan(self, step: int, task_ids: Sequence[int]) -> Batch:
        if step not in self._plans:
            batch = Batch(step, tuple(self._ready.pop(task_id) for task_id in task_ids))
            self._plans[step] = batch
            self._settle(step, batch.groups, "trained")
        return self._plans[step]

    def planned(self, step: int) -> Batch | None:
        return self._plans.get(step)

    def trained(self, step: int) -> None:
        self._plans.pop(step, None)

    def save(self, step: int) -> None:
        self.source.save(step)
        if self.args.save is None:
            return
        later = [task for number, batch in self._plans.items() if number > step for task in batch.tasks]
        kept = [[portable(sample.to_dict()) for sample in task.group] for task in [*later, *self._ready.values()]]
        save_state(finished_path(self.args.save, step), {"format": 1, "groups": kept})

    def load(self, step: int | None) -> None:
        self.source.load(step)  # type: ignore[arg-type]
        if self.args.load is None or step is None or step < 0:
            return
        path = finished_path(self.args.load, step)
        if not path.is_file():
            return
        import torch

        # The data source deals these prompts again, since none of them was trained; `claim` then finds them answered.
        groups = [[Sample.from_dict(one) for one in group] for group in torch.load(path, weights_only=True)["groups"]]
        self._restored = {group[0].group_index: group for group in groups if group[0].group_index is not None}

    def committed(self, step: int) -> None:
        pass

    def archive(self, path: Path, rollout_id: int | str, groups: Sequence[Group]) -> None:
        raise UsageError(
            f"--save-debug-rollout-data {path} is an index, and there is no queue to refer to", hint="name a .pt file"
        )

    def refer(self, step: int, samples: Sequence[Sample]) -> list[Sample]:
        return list(samples)

    def sync(self, step: int | None = None) -> None:
        pass

    def close(self) -> None:
        pass

    def counts(self) -> Counts:
        return Counts(len(self._leased), len(self._ready), sum(len(batch.tasks) for batch in self._plans.values()))

    def _task(self, group: Group) -> Task:
        index = group[0].group_index
        if index is None:
            self._nameless -= 1
            return Task(self._nameless, group)
        return Task(index, self._restored.pop(index, group))

    def _settle(self, step: int, groups: list[Group], fate: str) -> None:
        if isinstance(self.source, SettlingDataSource):
            self.source.settle(step, groups, fate)


def open_store(args: Namespace, source: DataSource) -> Store:
    """The store that ``--rollout-data-transport`` asks for."""
    if args.rollout_data_transport == "straw":
        from vime.durable.store import DurableStore

        return DurableStore(args, source)
    return MemoryStore(args, source)


def finished_path(folder: str, step: int) -> Path:
    return Path(folder) / "rollout" / f"finished_groups_{step}.pt"
