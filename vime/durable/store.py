"""The generation pool's store on disk: everything as in memory, and every change journaled.

    claim, release, accept, drop, plan, trained     change memory at once and are committed in the background
    save(step)          writes the data half of the joint checkpoint
    sync()              waits until all of that is committed, as the manager does before a checkpoint; after a step it waits for the one
                        before: the disk has the time of a step, and a crash that comes first takes the step's weights with it
    committed(step)     the trainer's half is there too: the step is behind every recovery

So what a crash can take back is work of the step that was not trained yet, never a step that was; and what it leaves is at most an answer that
is generated again, never one that is trained again.

    <save>/rollout/global_dataset_state_dict_<step>.pt    position in the prompts, and which are outstanding
                   queue_<step>.json                      the queue and the branch that belong to it
                   committed_<step>.json                  written last: size and sha256 of both and of the trainer's manifest
"""

from __future__ import annotations

import logging
import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vime import environment
from vime.data.protocol import Dealt, Group, ResumableDataSource, oldest_version
from vime.data.source import TRAINED, state_path
from vime.durable import history, reference, restore
from vime.durable.archive import Source, owner_of, write_index
from vime.durable.faults import told
from vime.durable.files import facts_of, read_json, write_json
from vime.durable.packed import Packed
from vime.durable.pool import Fault, Pool
from vime.durable.queue import FRESH, PARTIAL, UNKNOWN_VERSION, Queue, control_folder, load_group
from vime.durable.writer import Accept, Act, Claim, Drop, Release, Writer
from vime.errors import DataError, MachineError, UsageError
from vime.rollout.pool.store import Batch, MemoryStore, Task
from vime.sample import Sample

log = logging.getLogger(__name__)

_FORMAT = 1
#: Seconds that the disk may take for what one step leaves behind.
_DEADLINE = 300.0


class DurableStore(MemoryStore):
    """See the module. One process owns the queue's folder for as long as this lives."""

    def __init__(self, args: Namespace, source: Any, fault: Fault | None = None) -> None:
        """Raises UsageError for a data source that cannot say where it is, MachineError when the folder is in use or not writable."""
        super().__init__(args, source)
        if not isinstance(source, ResumableDataSource):
            raise UsageError(
                f"--data-source-path: {type(source).__name__} lacks cursor, origin or resume, so a durable queue cannot continue it",
                hint="see ResumableDataSource in vime/data/protocol.py, or use another transport",
            )
        enough_files(args)
        self.pool = Pool(Path(args.rollout_data_dir), args, fault)
        self.queue: Queue | None = None
        self._writer: Writer | None = None
        self._known: set[int] = set()
        self._progress = {"trained": -1, "saved": -1, "committed": -1}
        #: Step -> what was put to the writer when it was trained.
        self._marks: dict[int, int] = {}
        #: What was recorded of the samples of tasks that are not trained yet, as it was written.
        self._recorded: dict[int, list[dict[str, Any]]] = {}

    @property
    def writer(self) -> Writer:
        if self._writer is None:
            raise DataError("the rollout queue is used before `load`", where=str(self.pool.folder))
        return self._writer

    # -- changes -------------------------------------------------------------------------------------------------

    def claim(self, count: int) -> list[Task]:
        tasks = super().claim(count)
        new = [task for task in tasks if task.task_id not in self._known]
        cursor = self._source.cursor() if new else None
        self.writer.put(*(self._claimed(task, cursor) for task in tasks))
        self._known |= {task.task_id for task in new}
        return tasks

    def _claimed(self, task: Task, cursor: Any) -> Claim:
        if task.task_id in self._known:
            return Claim(task.task_id)
        facts = {"samples": len(task.group), "origin": self._origin(task)}
        return Claim(task.task_id, Packed(task.group), facts, cursor)

    def release(self, task_id: int, group: Group, reason: str) -> None:
        if task_id in self._leased:
            oldest = oldest_version(group)
            partial = any(sample.response_length for sample in group)
            if oldest is None:
                oldest = UNKNOWN_VERSION if partial else 0
            self.writer.put(Release(task_id, Packed(group), PARTIAL if partial else FRESH, oldest))
        super().release(task_id, group, reason)

    def accept(self, task_id: int, group: Group) -> None:
        if task_id in self._leased:
            self.writer.put(Accept(task_id, Packed(group)))
            self._recorded[task_id] = reference.recorded(group)
        super().accept(task_id, group)

    def drop(self, task_id: int, step: int, reason: str) -> None:
        if task_id in self._leased:
            self.writer.put(Drop(task_id, step, reason))
        super().drop(task_id, step, reason)

    def plan(self, step: int, task_ids: Sequence[int]) -> Batch:
        known = step in self._plans
        batch = super().plan(step, task_ids)
        if not known:
            ids = [task.task_id for task in batch.tasks]
            # Generation has paused for this step or has a lead: once the batch has left, nobody needs this process more than the disk does.
            self.writer.put(Act(lambda queue: queue.plan(step, ids)), now=True)
        return batch

    # -- steps ---------------------------------------------------------------------------------------------------

    def trained(self, step: int) -> None:
        tasks = [task.task_id for task in self._plans[step].tasks] if step in self._plans else []
        for task_id in tasks:
            self._recorded.pop(task_id, None)
        super().trained(step)
        self._advance(forget=tasks, trained=step)
        self._marks[step] = self.writer.mark

    def save(self, step: int) -> None:
        self._advance(saved=step)
        with told(self.pool.folder, "saving the data half of the checkpoint"):
            self.source.save(step)
            if self.args.save is None:
                return
            state = state_path(self.args.save, step)
            branch = self.queue.branch if self.queue is not None else None
            facts = {"format": _FORMAT, "pool": self.pool.identity.pool, "branch": branch, "step": step}
            write_json(_queue_file(self.args.save, step), facts | {"data": facts_of(state)})

    def committed(self, step: int) -> None:
        """The trainer's checkpoint of `step` is complete. What only earlier ones needed may be freed from now on."""
        if self.args.save is not None:
            with told(Path(self.args.save), "completing the checkpoint"):
                files = _parts(Path(self.args.save), step)
                write_json(_commit_file(self.args.save, step), {"format": _FORMAT, "step": step, "files": files})

        # As it is now: the writer comes to it when later steps have begun.
        self._progress = progress = self._progress | {"committed": step}

        def finish(queue: Queue) -> None:
            queue.finish(step)
            queue.note(history.PROGRESS, progress)
            if freed := queue.collect():
                log.info("the rollout queue freed %d packs", freed)

        self.writer.put(Act(finish))

    def archive(self, path: Path, rollout_id: int | str, groups: Sequence[Group]) -> None:
        """Write an index of `groups`, which stay in this queue's packs however long the index is there. Waits for it."""
        owner, folder = owner_of(path), os.path.relpath(self.pool.folder, path.resolve().parent)
        packed = [Packed(list(group)) for group in groups]
        for one in packed:
            _ = one.tree  # what cannot be stored is this caller's error, not the writer's
        keys = [group[0].group_index for group in groups]
        source = Source(self.pool.identity.pool, self.pool.identity.run_id, folder)

        def export(queue: Queue) -> None:
            refs = queue.export(owner, packed)
            write_index(path, rollout_id, source, list(zip(keys, refs, strict=True)), sum(map(len, groups)))

        self.writer.put(Act(export))
        self.writer.barrier()

    def refer(self, step: int, samples: Sequence[Sample]) -> list[Sample]:
        """Waits until the batch of `step` is on disk."""
        if step not in self._plans:  # of a rollout function that claims nothing here
            return list(samples)
        self.writer.barrier()
        answers = self._opened().answers
        known: dict[int, reference.TensorAt] = {}
        with told(self.pool.folder, "referring to answers"):
            for task in self._plans[step].tasks:
                known |= reference.of_group(self.pool.results, answers[task.task_id], self._recorded[task.task_id])
        return reference.refer(samples, known)

    def sync(self, step: int | None = None) -> None:
        """Raises MachineError when the disk does not take it."""
        if step is None:
            self.writer.barrier()
        elif (mark := self._marks.pop(step, None)) is not None:
            self.writer.barrier(mark)

    def load(self, step: int | None) -> None:
        """Continue after `step`, in the branch in force or in a new one (see `restore`). The log says which, and why.

        Raises DataError when the checkpoint's data half is damaged or missing, or the prompts or their order have changed.
        """
        after = -1 if step is None else step
        self._stop()
        self._marks.clear()
        self._recorded.clear()
        super().__init__(self.args, self.source)
        with told(self.pool.folder, "reading the rollout queue"):
            checkpoint = self._checkpoint(after)
            branch = self.pool.current
            known = history.read(control_folder(self.pool, branch)) if branch else None
            facts = self.pool.facts(branch) if branch else {}
            config = restore.digest(self.args)
            verdict = restore.decide(
                known, branch, after, checkpoint, self.pool.identity.pool, config, facts.get("config", "")
            )
            match verdict:
                case restore.InPlace(replayed):
                    assert known is not None
                    assert branch is not None
                    self._resume(known, branch, after, replayed)
                case restore.Branch(reason):
                    self._branch(branch, after, reason, config)
        self._writer = Writer(self._opened(), _DEADLINE)
        # A checkpoint that was complete when the process before died may not be known to be.
        if after > self._progress["committed"] and checkpoint is not None:
            self.committed(after)

    def close(self) -> None:
        """Commit what waits and let go of the folder."""
        self._stop()
        self.pool.close()

    # -- opening -------------------------------------------------------------------------------------------------

    def _opened(self) -> Queue:
        assert self.queue is not None
        return self.queue

    def _stop(self) -> None:
        if self._writer is not None:
            self._writer.close()
        if self.queue is not None:
            self.queue.close()
        self._writer = self.queue = None

    def _resume(self, known: history.History, branch: str, step: int, replayed: tuple[int, ...]) -> None:
        self._progress = known.progress | {"trained": step, "saved": max(step, known.progress["committed"])}
        self._known = set(known.tasks)
        planned = known.in_batches()

        def task(number: int) -> Task:
            entry = known.tasks[number]
            assert entry.ref is not None
            group = load_group(self.pool.results, entry.ref, entry.place)
            self._recorded[number] = reference.recorded(group)
            return Task(number, group)

        self._plans = {number: Batch(number, tuple(map(task, known.batches[number]))) for number in replayed}
        ready = [e for e in known.tasks.values() if e.state == "ready" and e.task_id not in planned]
        self._ready = {e.task_id: task(e.task_id) for e in sorted(ready, key=lambda entry: entry.position or 0)}
        waiting = {e.task_id: task(e.task_id).group for e in known.tasks.values() if e.state in ("pending", "leased")}
        cursor = known.notes.get(history.CURSOR)
        kept = cursor is None or self._source.resume(cursor, dealt(known, waiting), step, str(self.pool.folder))
        self.queue = Queue(self.pool, branch, self.args.rollout_queue_lease_seconds, create=False)
        self.queue.recall(known, self._progress["committed"])
        self.queue.note(history.PROGRESS, self._progress)
        if not kept:
            self.queue.drop([(number, step + 1, "data changed") for number in waiting])
        log.warning(
            "rollout queue: going on in branch %s after step %d: %d groups wait, %d are ready%s",
            branch,
            step,
            len(waiting) if kept else 0,
            len(self._ready),
            f"; steps {replayed[0]} to {replayed[-1]} are trained as they were planned" if replayed else "",
        )

    def _branch(self, parent: str | None, step: int, reason: str, config: str) -> None:
        super().load(step)
        self._known = set()
        self._progress = {"trained": step, "saved": step, "committed": step}
        facts = {"format": _FORMAT, "parent": parent, "step": step, "reason": reason, "config": config}
        name = self.pool.new_branch(facts)
        self.queue = Queue(self.pool, name, self.args.rollout_queue_lease_seconds, create=True)
        self.queue.note(history.PROGRESS, self._progress)
        self.pool.set_current(name)
        log.warning("rollout queue: branch %s begins after step %d: %s", name, step, reason)

    @property
    def _source(self) -> ResumableDataSource:
        assert isinstance(self.source, ResumableDataSource)
        return self.source

    def _origin(self, task: Task) -> Any:
        return self._source.origin(task.task_id) if task.task_id >= 0 else None

    def _advance(self, forget: Sequence[int] = (), **steps: int) -> None:
        self._progress = progress = self._progress | steps

        def note(queue: Queue) -> None:
            queue.note(history.PROGRESS, progress)
            queue.forget(forget)

        self.writer.put(Act(note))

    def _checkpoint(self, step: int) -> dict[str, Any] | None:
        """What `save` wrote for `step` of the checkpoint in --load, checked; None when that was saved without a queue."""
        if step < 0 or self.args.load is None:
            return None
        root = Path(self.args.load)
        found = read_json(_queue_file(root, step))
        if found is None:
            return None
        hint = "choose another step with --ckpt-step"
        state = state_path(str(root), step)
        if not state.is_file() or facts_of(state) != found["data"]:
            raise DataError("the data state is not the one that was saved", where=str(state), hint=hint)
        commit = read_json(_commit_file(root, step))
        if commit is not None:
            for name, facts in commit["files"].items():
                if not (root / name).is_file() or facts_of(root / name) != facts:
                    raise DataError(
                        "is not what the joint checkpoint was completed with", where=str(root / name), hint=hint
                    )
        return found


def enough_files(args: Namespace) -> None:
    """Raise the limit of open files and say so. Raises MachineError when it does not suffice for the requests in flight and the packs.

    A run in which it did not was seen to die of a storage error after hours.
    """
    limit = environment.raise_file_limit()
    engines = max(1, args.model_groups[0].count)
    needed = 2 * args.vllm_server_concurrency * engines + 512
    log.info("%s of at most %d, needed %d", limit, limit.hard, needed)
    if limit.soft < needed:
        raise MachineError(
            f"{limit.soft} files may be open, this run may need {needed}",
            hint=f"raise the hard limit (ulimit -Hn {needed}), or lower --vllm-server-concurrency",
        )


def dealt(known: history.History, waiting: Mapping[int, Group]) -> list[Dealt]:
    """What the data source must know of every task: those that wait, partial ones first as the queue would serve them, and all fates."""
    trained = {task: step for step, tasks in known.batches.items() for task in tasks}
    found = []
    for entry in known.tasks.values():
        common = (entry.task_id, entry.metadata["origin"])
        samples = entry.metadata["samples"]
        if entry.task_id in trained:
            found.append(Dealt(*common, fate=TRAINED, step=trained[entry.task_id], samples=samples))
        elif entry.state == "dropped":
            found.append(Dealt(*common, fate=entry.reason, step=entry.step or 0, samples=samples))
        else:
            found.append(Dealt(*common, group=waiting.get(entry.task_id)))

    def late(one: Dealt) -> tuple[bool, int]:
        begun = one.group is not None and any(sample.response_length for sample in one.group)
        return not begun, one.group_index

    return sorted(found, key=late)


def _queue_file(root: str | Path, step: int) -> Path:
    return Path(root) / "rollout" / f"queue_{step}.json"


def _commit_file(root: str | Path, step: int) -> Path:
    return Path(root) / "rollout" / f"committed_{step}.json"


def _parts(root: Path, step: int) -> dict[str, Any]:
    """The files that a joint checkpoint consists of. The trainer's manifest names its own with their digests."""
    names = [state_path(str(root), step), _queue_file(root, step), root / f"iter_{step:07d}" / "manifest.json"]
    return {str(path.relative_to(root)): facts_of(path) for path in names if path.is_file()}
