"""One branch of work as a Straw queue: a task a prompt, a result an answered group, a batch a step. Synchronous; the writer's thread calls it.

Every method commits several tasks at once where Straw can, since each commit waits for the disk.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from vime.durable import codec, history
from vime.durable.files import read_json
from vime.durable.packed import Packed
from vime.durable.pool import Pool

T = TypeVar("T")
#: The consumer that Straw's garbage collection counts by.
_CONSUMER = "training"
_WORKER = "pool"
#: A restart revokes leases, which Straw counts as an attempt; prompts are never lost to that.
_ATTEMPTS = 1 << 30
#: Straw serves partial groups before fresh ones, among them the oldest weights first.
FRESH, PARTIAL = 0, 1
UNKNOWN_VERSION = (1 << 63) - 1
#: Records that are written at once. Straw looks through all of them for each task that refers to one: at 256 a task cost 7 times what it does at 16.
_TOGETHER = 24
#: Prompts up to this size share a record; whoever reads one of them reads all.
_SHARED_BYTES = 1 << 20


class Queue:
    """A branch that this process works on. Opening an existing one revokes the leases of the process before.

    Every method raises Straw's errors; `faults.told` translates them.
    """

    def __init__(self, pool: Pool, branch: str, lease_seconds: float, *, create: bool) -> None:
        from straw import Coordinator, Limits

        self.pool, self.branch = pool, branch
        options: dict[str, Any] = {"limits": Limits(), "lease_seconds": lease_seconds}
        if not create:
            # Straw takes a queue only as it was made; a lease that is a little longer or shorter is not worth a refusal.
            made = read_json(control_folder(pool, branch) / "run.json") or {}
            options = {"limits": Limits(**made["limits"]), "lease_seconds": made["lease_seconds"]}
        self.lease_seconds = float(options["lease_seconds"])
        self._coordinator = Coordinator(
            pool.control, queue_id=branch, namespace=True, exclusive_owner="owner.lock", recover=not create, **options
        )
        #: Of this opening. Straw tells it by way of its whole state, whose size grows with the run.
        self._epoch = self._coordinator.epoch
        self._token = self._coordinator.open_consumer(_CONSUMER, exclusive_owner="owner.lock")
        #: As Straw sends them to its native half (see `_plain`).
        self._leases: dict[int, dict[str, Any]] = {}
        self._positions: dict[int, int] = {}
        #: Records of answers that were not forgotten, by task.
        self.answers: dict[int, Any] = {}
        self._batches: dict[int, tuple[int, ...]] = {}
        self._finished: set[int] = set()
        self._requests = 0
        self._void: Any = None
        self._progress: tuple[int, Any] | None = None
        self._beat = time.monotonic()

    def recall(self, known: history.History, committed: int) -> None:
        """Take over what `history` says of this branch; batches up to step `committed` are behind every checkpoint to come."""
        from straw import RecordSetRef

        self._positions = {n: e.position for n, e in known.tasks.items() if e.position is not None}
        done = {n for step, tasks in known.batches.items() if step <= committed for n in tasks}
        self.answers = {n: RecordSetRef.from_dict(known.tasks[n].ref) for n in self._positions.keys() - done}
        self._batches = dict(known.batches)
        self._finished = {step for step in known.batches if step <= committed and step in known.ready}
        for step in sorted(known.batches.keys() - known.ready):  # the process before died between the two
            self._make_ready(step)

    def submit(self, tasks: Sequence[tuple[int, Packed, dict[str, Any]]], cursor: Any) -> None:
        """New tasks (id, prompt, metadata), and the data source's position after them, in one commit."""
        from straw import Record, TaskSpec

        # Straw looks at a task's records one by one, and at those that lie beside them: prompts that are plain text share a record.
        shared = [one for one in tasks if not one[1].tensors]
        alone = [one for one in tasks if one[1].tensors]
        parts = list(_parts(shared, lambda one: len(one[1].tree), _SHARED_BYTES))
        packed = [
            [Record(f"prompts:{part[0][0]}", codec.join([group.tree for _, group, _ in part]), codec.MANY, {})]
            for part in parts
        ]
        packed += [group.records(f"prompt:{n}", {}) for n, group, _ in alone]
        refs = [_plain(ref) for ref in self._publish(self.pool.control, "prompts", packed)]
        found = {}
        for part, ref in zip(parts, refs[: len(parts)], strict=True):
            for place, (n, _, metadata) in enumerate(part):
                found[n] = (ref, metadata | {history.PLACE: place})
        for (n, _, metadata), ref in zip(alone, refs[len(parts) :], strict=True):
            found[n] = (ref, metadata)
        specs = [
            vars(TaskSpec(str(n), input_ref=found[n][0], metadata=found[n][1], max_attempts=_ATTEMPTS))
            for n, *_ in tasks
        ]
        self._coordinator.submit_tasks(
            self._request("submit"), specs, producer_id=history.CURSOR, producer_state=cursor
        )

    def note(self, name: str, value: Any) -> None:
        """A named value, in a commit of its own."""
        self._coordinator.submit_tasks(self._request(name), [], producer_id=name, producer_state=value)

    def acquire(self, tasks: Sequence[int]) -> None:
        """Lease these pending tasks."""
        found = self._coordinator.acquire(_WORKER, len(tasks), task_ids=[str(n) for n in tasks])
        for assignment in found.assignments:
            self._leases[int(assignment.task.task_id)] = vars(assignment.lease)

    def give_back(self, tasks: Sequence[tuple[int, Packed, int, int]]) -> None:
        """End the leases without a result: (id, what the next claim gets, priority, oldest weight version)."""
        self._hold([n for n, *_ in tasks])
        refs = self._publish(self.pool.results, "again", [group.records(f"again:{n}", {}) for n, group, *_ in tasks])
        updates = [
            {"lease": self._leases[n], "input_ref": _plain(ref), "priority": priority, "scheduling_key": version}
            for (n, _, priority, version), ref in zip(tasks, refs, strict=True)
        ]
        self._coordinator.yield_tasks(updates, request_id=self._request("yield"))
        for n, *_ in tasks:
            del self._leases[n]

    def complete(self, tasks: Sequence[tuple[int, Packed]]) -> None:
        """End the leases with results. Their payloads are written together; Straw accepts each by a commit."""
        self._hold([n for n, _ in tasks])
        packed = []
        for n, group in tasks:
            owner = {"task_id": str(n), "attempt_id": self._leases[n]["attempt_id"]}
            packed.append(group.records(f"answer:{n}", owner))
        refs = self._publish(self.pool.results, "answers", packed)
        for (n, _), ref in zip(tasks, refs, strict=True):
            lease = self._leases.pop(n)
            receipt = self._coordinator.complete_task(
                lease, submission_id=lease["attempt_id"], result_ref=_plain(ref), result_digest=ref.digest
            )
            self._positions[n] = receipt.position
            self.answers[n] = ref

    def drop(self, tasks: Sequence[tuple[int, int, str]]) -> None:
        """End the leases for good: (id, step, reason)."""
        self._hold([n for n, *_ in tasks])
        for n, step, reason in tasks:
            self._coordinator.fail_task(
                self._leases.pop(n),
                request_id=self._request("drop"),
                failure={"reason": reason, "step": step},
                retryable=False,
            )

    def plan(self, step: int, tasks: Sequence[int]) -> None:
        """Fix the batch of `step`, and mark it as one that the trainer may read. The positions say all: no record is written for them."""
        self._coordinator.plan_batch(
            _CONSUMER,
            token=self._token,
            batch_id=history.batch_id(step),
            input_positions=[self._positions[n] for n in tasks],
            plan_ref=self._nothing(),
        )
        self._batches[step] = tuple(tasks)
        self._make_ready(step)

    def _make_ready(self, step: int) -> None:
        processed, progress = self._processed()
        self._coordinator.batch_ready(
            _CONSUMER,
            token=self._token,
            batch_id=history.batch_id(step),
            ready_ref=self._nothing(),
            state_ref=self._nothing(),
            fetch_cursor=len(self._positions),
            processed_cursor=processed,
            progress_ref=progress,
        )

    def finish(self, step: int) -> None:
        """Nobody will read the batches up to `step` again: a complete checkpoint has trained them."""
        self._finished = {number for number in self._batches if number <= step}
        self._progress = None
        if not self._finished:
            return
        processed, progress = self._processed()
        self._coordinator.save_consumer_state(
            _CONSUMER,
            token=self._token,
            request_id=self._request("finish"),
            state_ref=progress,
            fetch_cursor=len(self._positions),
            processed_cursor=processed,
            progress_ref=progress,
        )

    def forget(self, tasks: Sequence[int]) -> None:
        """This process will not refer to the answers of `tasks` again."""
        for n in tasks:
            self.answers.pop(n, None)

    def export(self, owner: str, groups: Sequence[Packed]) -> list[Any]:
        """Records of `groups` that belong to `owner` and to no task. Returns their references."""
        packed = [group.records(f"{owner}:{i}", {}) for i, group in enumerate(groups)]
        refs = self._publish(self.pool.results, "export", packed)
        if self.pool.identity.online_gc:
            self.pool.results.retain(owner, refs)
            self.pool.results.release_publications(refs)
        return refs

    def collect(self) -> int:
        """Seal the present packs, delete those that nothing owns. Returns how many; 0 without --rollout-queue-online-gc.

        Only what a task, a batch or the consumer's state refers to stays: a reference kept here alone leads nowhere afterwards.
        """
        if not self.pool.identity.online_gc:
            return 0
        self.pool.results.seal()
        self._void = None  # finished batches alone may have owned it
        return int(self._coordinator.collect_garbage().get("reclaimed_files", 0))

    def heartbeat(self) -> None:
        """Renew all leases, when half of their time is over."""
        if time.monotonic() - self._beat <= self.lease_seconds / 2:
            return
        if self._leases:
            self._coordinator.heartbeat(list(self._leases.values()))
        self._beat = time.monotonic()

    def close(self) -> None:
        self._coordinator.close()

    def _publish(self, store: Any, name: str, packed: Sequence[Sequence[Any]]) -> list[Any]:
        """A reference to each set of records, written some sets at a time."""
        from straw import Publication

        refs: list[Any] = []
        part: list[Any] = []
        for i, records in enumerate(packed, 1):
            part.append(Publication(tuple(records)))
            if i == len(packed) or sum(len(one.records) for one in part) >= _TOGETHER:
                refs += store.publish_many(part, submission_id=self._request(name))
                part = []
        return refs

    def _hold(self, tasks: Sequence[int]) -> None:
        """Take again what was lost while this process stood still: nobody else works on this branch."""
        if time.monotonic() - self._beat > self.lease_seconds / 2:
            held = [n for n in tasks if n in self._leases]
            answers = self._coordinator.heartbeat([self._leases[n] for n in held]) if held else []
            for n, answer in zip(held, answers, strict=True):
                if answer != "extended":
                    del self._leases[n]
        if unknown := [n for n in tasks if n not in self._leases]:
            self.acquire(unknown)

    def _processed(self) -> tuple[int, Any]:
        """The length of the run of finished answers from the first on, and a record of those beyond it, as of the last `finish`."""
        if self._progress is not None:
            return self._progress
        done = sorted(self._positions[n] for step in self._finished for n in self._batches[step])
        prefix = 0
        while prefix < len(done) and done[prefix] == prefix:
            prefix += 1
        facts = {
            "version": 1,
            "processed_positions": done[prefix:],
            "finished_batches": [history.batch_id(step) for step in sorted(self._finished)],
        }
        self._progress = prefix, self._json("progress", facts)
        return self._progress

    def _nothing(self) -> Any:
        """A record without content, for where Straw wants one."""
        if self._void is None:
            self._void = self._json("void", {})
        return self._void

    def _json(self, name: str, value: Any) -> Any:
        from straw import Record

        request = self._request(name)
        record = Record(request, json.dumps(value).encode(), "json.v1")
        return self.pool.control.publish([record], submission_id=request)

    def _request(self, name: str) -> str:
        self._requests += 1
        return f"{name}:{self._epoch}:{self._requests}"


def control_folder(pool: Pool, branch: str) -> Any:
    """Where a branch's journal is: Straw names the folder by the digest of the queue's name."""
    from straw.protocol import digest

    return pool.folder / "queues" / digest(branch)


def _plain(ref: Any) -> dict[str, Any]:
    """A record set's reference as Straw sends it to its native half. By itself it goes through `dataclasses.asdict`, at ten times the cost."""
    manifest = ref.manifest
    return vars(ref) | {"manifest": {"segment": vars(manifest.segment), "ordinal": manifest.ordinal}}


def _parts(items: Iterable[T], size: Callable[[T], int], limit: int) -> Iterator[list[T]]:
    """`items` in their order, in parts of at most `limit` together; one that is larger is a part of its own."""
    part: list[T] = []
    total = 0
    for item in items:
        if part and total + size(item) > limit:
            yield part
            part, total = [], 0
        part.append(item)
        total += size(item)
    if part:
        yield part


def load_group(store: Any, ref: dict[str, Any], place: int | None = None) -> Any:
    """The group behind a reference, checked against its digests; the one at `place` where groups share a record."""
    from straw import RecordSetRef
    from straw.tensor import TensorRef

    reference = RecordSetRef.from_dict(ref)
    with store.read_session() as reader:
        members = reader.validate(reference)
        tree = bytes(reader.read_record(members[0]).payload)

        def tensor(number: int) -> Any:
            return TensorRef.from_record(store, members[1 + number]).load(reader=reader)

        return codec.decode(tree, tensor, place)
