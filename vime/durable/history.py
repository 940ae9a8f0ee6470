"""A branch's journal, folded: what became of every task. Pure; recovery and audit read the same.

The journal is Straw's, a list of transactions of events. Of those that concern tasks, batches and notes:

    Submitted   tasks join, and a note of the data source's position with them
    Leased, Yielded, Expired, Epoch     a task is taken, or back; a yielded one has a new input
    Completed   a task has an answer, at a position of the queue
    Failed      a task will never be trained, with the reason
    BatchPlanned    positions are the batch of a step
    BatchReady      the trainer may read it
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vime.durable.faults import told
from vime.errors import DataError

#: Producers of Straw's queue are named values that change together with tasks.
CURSOR = "data"
PROGRESS = "progress"
#: In a task's metadata: which of the prompts that share a record is its own.
PLACE = "place"


@dataclass(frozen=True)
class Entry:
    """A task. `state`: pending, leased, ready, dropped. `ref`: what it holds now, a prompt, a prefix or an answer; the one at `place` where several share it.

    `metadata` is what the task was submitted with; `position` of its answer; `reason` and `step` of its drop.
    """

    task_id: int
    state: str
    ref: dict[str, Any] | None
    metadata: dict[str, Any]
    position: int | None = None
    reason: str | None = None
    step: int | None = None
    place: int | None = None


@dataclass
class History:
    """`batches`: step -> task ids in the order of the plan; `ready` those of them that may be read. `notes`: the last value of each."""

    tasks: dict[int, Entry] = field(default_factory=dict)
    batches: dict[int, tuple[int, ...]] = field(default_factory=dict)
    ready: set[int] = field(default_factory=set)
    notes: dict[str, Any] = field(default_factory=dict)
    torn_bytes: int = 0

    @property
    def progress(self) -> dict[str, int]:
        """Steps: `trained` by a process, `saved` with a checkpoint, `committed` once that was complete. -1: none."""
        return {"trained": -1, "saved": -1, "committed": -1} | self.notes.get(PROGRESS, {})

    def in_batches(self, beyond: int | None = None) -> set[int]:
        """Tasks of all plans, or of those after step `beyond`."""
        return {task for step, tasks in self.batches.items() if beyond is None or step > beyond for task in tasks}


def fold(transactions: Iterable[Any]) -> History:
    """The history that `transactions` tell. The first one is the queue's identity."""
    history = History()
    places: dict[int, int] = {}
    for transaction in transactions:
        for event in transaction:
            _apply(history, places, event)
    return history


def read(control: Path) -> History:
    """The history of the queue in folder `control`, of a running process too. Raises DataError when its journal is damaged."""
    from straw.backend import FilesystemBackend
    from straw.journal import Journal

    with told(control, "reading the journal"):
        backend = FilesystemBackend(control)
        try:
            identity = json.loads((control / "run.json").read_text(encoding="utf-8"))
        except ValueError as error:
            raise DataError(f"is no JSON: {error}", where=str(control / "run.json")) from error
        journal = Journal(backend, identity, recover=True, read_only=True)
        try:
            history = fold(journal.transactions)
            history.torn_bytes = int(journal.incomplete_tail_bytes)
            return history
        finally:
            journal.close()


def _apply(history: History, places: dict[int, int], event: dict[str, Any]) -> None:
    tasks = history.tasks
    match event["type"]:
        case "Submitted":
            for spec in event["tasks"]:
                number = int(spec["task_id"])
                tasks[number] = Entry(
                    number, "pending", spec["input_ref"], spec["metadata"], place=spec["metadata"].get(PLACE)
                )
            if event["producer_id"] is not None:
                history.notes[event["producer_id"]] = event["producer_state"]
        case "Leased":
            for lease in event["leases"]:
                _change(tasks, lease["task_id"], state="leased")
        case "Epoch":
            for task_id in event["revoked"]:
                _change(tasks, task_id, state="pending")
        case "Expired":
            for task_id in event["task_ids"]:
                _change(tasks, task_id, state="pending")
        case "Yielded":
            _change(tasks, event["task_id"], state="pending", ref=event["input_ref"], place=None)
        case "TaskProgress":
            _change(tasks, event["task_id"], ref=event["input_ref"], place=None)
        case "Failed":
            failure = event["failure"]
            for task_id in event["task_ids"]:
                if event["retryable"]:
                    _change(tasks, task_id, state="pending")
                else:
                    _change(tasks, task_id, state="dropped", reason=failure["reason"], step=failure["step"])
        case "Completed":
            receipt = event["receipt"]
            places[receipt["position"]] = int(receipt["task_id"])
            changes = {"state": "ready", "ref": receipt["result_ref"], "position": receipt["position"]}
            _change(tasks, receipt["task_id"], **changes, place=None)
        case "BatchPlanned":
            batch = event["batch"]
            step = step_of(batch["batch_id"])
            history.batches[step] = tuple(places[position] for position in batch["input_positions"])
        case "BatchReady":
            history.ready.add(step_of(event["batch_id"]))


def _change(tasks: dict[int, Entry], task_id: str, **changes: Any) -> None:
    tasks[int(task_id)] = replace(tasks[int(task_id)], **changes)


def batch_id(step: int) -> str:
    return f"step-{step}"


def step_of(identity: str) -> int:
    return int(identity.removeprefix("step-"))
