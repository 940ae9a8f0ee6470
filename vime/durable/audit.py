"""The proof that every prompt and every sample has one fate, from what is on disk. A run need not be alive, nor have ended well.

Three records are held against each other: the queue's journal (what was dealt, answered, planned, dropped), the trainer's own account of its
batches (``ledger.jsonl``), and the joint checkpoints. A group counts as trained when it is in the batch of a step that was trained; a step that
was trained, lost with its weights and trained again from the same batch is one step.

Without a queue there is no journal: then the ledger is held against the data half of the newest checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vime.durable import history
from vime.durable.files import facts_of, read_json
from vime.durable.history import CURSOR, History
from vime.errors import DataError
from vime.observe.ledger import FILE, read_ledger
from vime.observe.metrics import read_metrics

_NAMED = 8  # groups that a finding names


@dataclass(frozen=True)
class Line:
    """A branch of the lineage. Its steps count up to `until`, where the next branch takes over; None: it is in force."""

    branch: str
    history: History
    until: int | None = None


@dataclass(frozen=True)
class Fate:
    """What became of a group of `samples`: `kind` is trained, dropped, planned, ready or waiting."""

    kind: str
    samples: int
    step: int | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Audit:
    """`fates` by group. `findings`: what is wrong, one sentence each; none: the run is clean. `notes`: what is worth knowing beside."""

    evidence: str
    fates: Mapping[int, Fate]
    trained_samples: int
    left_over: int
    trained_steps: int
    committed: int
    findings: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        return not self.findings

    def count(self, kind: str) -> tuple[int, int]:
        """Groups and samples of a kind."""
        sizes = [fate.samples for fate in self.fates.values() if fate.kind == kind]
        return len(sizes), sum(sizes)

    def to_dict(self) -> dict[str, Any]:
        """The machine form: counts, findings and notes, and the fate of every group."""
        kinds = ("trained", "dropped", "planned", "ready", "waiting")
        return {
            "clean": self.clean,
            "evidence": self.evidence,
            "counts": {kind: dict(zip(("prompts", "samples"), self.count(kind), strict=True)) for kind in kinds},
            "trained_samples": self.trained_samples,
            "left_over_samples": self.left_over,
            "trained_steps": self.trained_steps,
            "committed_step": self.committed,
            "dropped": dict(Counter(fate.reason for fate in self.fates.values() if fate.kind == "dropped")),
            "findings": list(self.findings),
            "notes": list(self.notes),
            "fates": {str(group): asdict(fate) for group, fate in sorted(self.fates.items())},
        }

    def render(self) -> str:
        """The text for people."""
        lines = [self.evidence]
        prompts, samples = len(self.fates), sum(fate.samples for fate in self.fates.values())
        lines.append(f"{prompts} prompts, {samples} samples")
        groups, _ = self.count("trained")
        held = f", of which the newest complete checkpoint holds {self.committed + 1}" if self.committed >= 0 else ""
        lines.append(
            f"  trained   {groups} prompts, {self.trained_samples} samples in {self.trained_steps} steps{held}"
        )
        if self.left_over:
            lines.append(f"  left over {self.left_over} samples that did not fill a training step")
        reasons = Counter(fate.reason for fate in self.fates.values() if fate.kind == "dropped")
        lines += [f"  dropped   {count} prompts: {reason}" for reason, count in sorted(reasons.items(), key=str)]
        pending = {kind: self.count(kind)[0] for kind in ("planned", "ready", "waiting")}
        if any(pending.values()):
            lines.append("  pending   " + ", ".join(f"{count} {kind}" for kind, count in pending.items() if count))
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"not clean: {finding}" for finding in self.findings]
        lines.append("audit: clean" if self.clean else f"audit: {len(self.findings)} findings")
        return "\n".join(lines)


def judge(
    lineage: Sequence[Line],
    ledger: Sequence[Mapping[str, Any]],
    base: Mapping[str, Any] | None = None,
    first: int = 0,
    name: str = "",
) -> Audit:
    """Hold the journals of a queue's `lineage`, oldest branch first, against the trainer's `ledger`. Pure.

    `first`: the step that the oldest branch began with, and `base` the data state of the checkpoint before it, if there was one.
    """
    findings: list[str] = []
    fates: dict[int, Fate] = {}
    batches: dict[int, tuple[int, ...]] = {}
    current = lineage[-1].history
    last = max(current.progress["trained"], current.progress["committed"])
    # The ledger is written before the queue is told: beyond that, a step died with the weights that it made.
    lost = [record["rollout_id"] for record in ledger if record["rollout_id"] > last]
    ledger = [record for record in ledger if record["rollout_id"] <= last]
    for before, line in zip([None, *lineage], lineage, strict=False):
        if before is not None:
            fates = _carry_over(fates, before, line)
        limit = last if line.until is None else line.until
        batches |= {
            step: tasks for step, tasks in line.history.batches.items() if line.until is None or step <= line.until
        }
        fates |= _of_branch(line, limit)
    findings += _in_two_batches(batches)
    findings += _not_answered(lineage)
    findings += _missing(fates, lineage, base)
    trained = {step for step in batches if step <= last}
    if gaps := sorted(set(range(first, last + 1)) - trained):
        findings.append(f"steps without a batch: {_some(gaps)}")
    found, told = _against_ledger(batches, trained, fates, ledger, first)
    findings += found
    groups_trained = {task for step in trained for task in batches[step]}
    samples = sum(fates[task].samples for task in groups_trained if task in fates)
    notes = [
        f"step {step} was trained by a process that died before it was on record; it is trained again" for step in lost
    ]
    notes += [
        f"the journal of {line.branch} ends in {line.history.torn_bytes} bytes of an unfinished write"
        for line in lineage
        if line.history.torn_bytes
    ]
    branches = ", ".join(f"{line.branch} until step {line.until}" for line in lineage[:-1])
    evidence = f"{name}branch {lineage[-1].branch}" + (f" ({branches})" if branches else "")
    return Audit(
        evidence,
        fates,
        told if ledger else samples,
        samples - told if ledger else 0,
        len(trained),
        current.progress["committed"],
        tuple(findings),
        tuple(notes),
    )


def judge_without_queue(ledger: Sequence[Mapping[str, Any]], state: Mapping[str, Any] | None) -> Audit:
    """The same for a run whose samples were never on disk: `state` is the data half of its newest checkpoint."""
    findings: list[str] = []
    fates: dict[int, Fate] = {}
    seen: Counter[int] = Counter()
    for record in ledger:
        groups = Counter(group for _, group in record["samples"])
        seen.update(sample for sample, _ in record["samples"])
        for group, size in groups.items():
            if group in fates:
                findings.append(f"group {group} was trained in steps {fates[group].step} and {record['rollout_id']}")
            fates[group] = Fate("trained", size, int(record["rollout_id"]))
    if twice := [sample for sample, times in seen.items() if times > 1]:
        findings.append(f"samples trained more than once: {_some(twice)}")
    steps = sorted(int(record["rollout_id"]) for record in ledger)
    if gaps := sorted(set(range(steps[-1] + 1 if steps else 0)) - set(steps)):
        findings.append(f"steps without an account: {_some(gaps)}")
    committed = -1
    notes = ["there is no durable queue: prompts that were in flight are known up to the newest checkpoint only"]
    if state is not None:
        committed = int(state.get("forgotten", -1))
        for group in state["outstanding"]:
            fates.setdefault(int(group), Fate("waiting", 0))
        settled = sum(state["fates"].values())
        if state["issued"] != settled + len(state["outstanding"]):
            findings.append(
                f"{state['issued']} prompts were dealt, {settled} have a fate and {len(state['outstanding'])} are out"
            )
        held = {group for group, fate in fates.items() if fate.step is not None and fate.step <= committed}
        if len(held) != state["fates"].get("trained", 0):
            findings.append(
                f"the checkpoint says that {state['fates'].get('trained', 0)} prompts are trained, the ledger that {len(held)} are"
            )
        notes += [
            f"{count} prompts were dropped: {why}" for why, count in sorted(state["fates"].items()) if why != "trained"
        ]
    return Audit(
        "ledger of the trainer" + (" and data half of its checkpoint" if state is not None else ""),
        fates, sum(seen.values()), 0, len(steps), committed, tuple(findings), tuple(notes),
    )  # fmt: skip


def audit(run: Path, deep: bool = False) -> Audit:
    """Audit the run in folder `run`. `deep` reads every record that is still needed, against its digests.

    Raises DataError when there is nothing to audit, or a record cannot be read.
    """
    facts = (read_metrics(run, "run") or [{}])[-1]
    queue = Path(facts.get("run/rollout_data_dir") or run / "rollout_data")
    save = Path(facts.get("run/save") or run)
    ledger = read_ledger(run / FILE)
    if not (queue / "pool.json").is_file():
        state = _newest_state(save)
        if not ledger and state is None:
            raise DataError(
                "nothing to audit",
                where=str(run),
                hint="name the folder of a run: --run-dir, else its --save, else runs/ID",
            )
        return judge_without_queue(ledger, state)
    lineage, first = _lineage(queue)
    base = _state(save, first - 1) if first else None
    report = judge(lineage, ledger, base, first, f"queue {queue}, ")
    found = [*report.findings, *_checkpoints(save)]
    if deep:
        found += _unreadable(queue, lineage[-1].history, report.committed)
    return replace(report, findings=tuple(found))


def _carry_over(fates: dict[int, Fate], before: Line, line: Line) -> dict[int, Fate]:
    """What the branch before left open is dealt again by this one, unless this one's data is another."""
    ours, theirs = line.history.notes.get(CURSOR), before.history.notes.get(CURSOR)
    changed = ours is not None and theirs is not None and ours["fingerprint"] != theirs["fingerprint"]
    carried = {}
    for group, fate in fates.items():
        if fate.kind in ("trained", "dropped"):
            carried[group] = fate
        elif changed:
            carried[group] = Fate("dropped", fate.samples, reason="data changed")
        else:
            carried[group] = Fate("waiting", fate.samples)
    return carried


def _of_branch(line: Line, trained: int) -> dict[int, Fate]:
    found: dict[int, Fate] = {}
    steps = {task: step for step, tasks in line.history.batches.items() for task in tasks}
    for number, entry in line.history.tasks.items():
        samples = int(entry.metadata["samples"])
        step = steps.get(number)
        if step is not None:
            kind = "trained" if step <= trained else "planned"
            found[number] = Fate(kind, samples, step)
        elif entry.state == "dropped":
            gone = line.until is None or (entry.step or 0) <= line.until
            found[number] = Fate(
                "dropped" if gone else "waiting", samples, entry.step if gone else None, entry.reason if gone else None
            )
        else:
            found[number] = Fate("ready" if entry.state == "ready" else "waiting", samples)
    return found


def _in_two_batches(batches: Mapping[int, Sequence[int]]) -> Iterable[str]:
    steps: dict[int, list[int]] = {}
    for step, tasks in sorted(batches.items()):
        for task in tasks:
            steps.setdefault(task, []).append(step)
    return [
        f"group {task} is in the batches of steps {' and '.join(map(str, of))}"
        for task, of in steps.items()
        if len(of) > 1
    ]


def _not_answered(lineage: Sequence[Line]) -> Iterable[str]:
    for line in lineage:
        for step, tasks in line.history.batches.items():
            for task in tasks:
                if (state := line.history.tasks[task].state) != "ready":
                    yield f"group {task} is in the batch of step {step} but is {state}"


def _missing(fates: Mapping[int, Fate], lineage: Sequence[Line], base: Mapping[str, Any] | None) -> Iterable[str]:
    cursors = [
        int(note["sample_group_index"]) for line in lineage if (note := line.history.notes.get(CURSOR)) is not None
    ]
    start = int(base["sample_group_index"]) if base else 0
    expected = set(range(start, max(cursors, default=start)))
    if missing := sorted(expected - fates.keys()):
        yield f"prompts that were drawn and have no record: groups {_some(missing)}"


def _against_ledger(
    batches: Mapping[int, Sequence[int]],
    trained: set[int],
    fates: Mapping[int, Fate],
    ledger: Sequence[Mapping[str, Any]],
    first: int,
) -> tuple[list[str], int]:
    """Findings, and how many samples the trainer says it trained in these steps."""
    findings: list[str] = []
    seen: Counter[int] = Counter()
    accounted = set()
    for record in ledger:
        step = int(record["rollout_id"])
        if step < first:
            continue
        accounted.add(step)
        seen.update(sample for sample, _ in record["samples"])
        strangers = {group for _, group in record["samples"]} - set(batches.get(step, ()))
        if strangers:
            findings.append(f"step {step} trained groups that are not in its batch: {_some(sorted(strangers))}")
    if ledger and (silent := sorted(trained - accounted)):
        findings.append(f"steps that the trainer has no account of: {_some(silent)}")
    if twice := [sample for sample, times in seen.items() if times > 1]:
        findings.append(f"samples trained more than once: {_some(twice)}")
    return findings, sum(seen.values())


def _lineage(queue: Path) -> tuple[list[Line], int]:
    """The branch in force with those that it continues, oldest first, and the first step of that one."""
    from straw.protocol import digest

    record = read_json(queue / "current.json")
    if record is None:
        raise DataError("the queue has no branch yet", where=str(queue))
    lines: list[Line] = []
    branch, until = str(record["branch"]), None
    while True:
        facts = read_json(queue / "branches" / f"{branch}.json") or {}
        lines.append(Line(branch, history.read(queue / "queues" / digest(branch)), until))
        step = int(facts.get("step", -1))
        if step < 0 or facts.get("parent") is None:
            return lines[::-1], step + 1  # one that began from the start voids all others
        branch, until = facts["parent"], step if until is None else min(step, until)


def _checkpoints(save: Path) -> Iterable[str]:
    """Joint checkpoints whose files are not what they were completed with. Folders that were removed are none of ours."""
    for path in sorted((save / "rollout").glob("committed_*.json")):
        record = read_json(path) or {}
        for name, facts in record.get("files", {}).items():
            if not (save / name).is_file():
                if name.startswith("rollout/"):
                    yield f"{save / name} is missing, checkpoint {record.get('step')} was completed with it"
            elif facts_of(save / name) != facts:
                yield f"{save / name} is not what checkpoint {record.get('step')} was completed with"


def _unreadable(queue: Path, known: History, committed: int) -> Iterable[str]:
    from straw import SharedFilesystemStore

    from vime.durable.pool import CODECS
    from vime.durable.queue import load_group
    from vime.errors import VimeError

    identity = read_json(queue / "pool.json") or {}
    store = SharedFilesystemStore(queue, identity["run_id"], codecs=CODECS, online_gc=identity["online_gc"])
    done = known.in_batches() - known.in_batches(beyond=committed)
    for number, entry in known.tasks.items():
        if entry.state == "dropped" or number in done or entry.ref is None:
            continue
        try:
            load_group(store, entry.ref, entry.place)
        except Exception as error:  # whatever reading meets is a finding, not an end
            what = error if isinstance(error, VimeError) else f"{type(error).__name__}: {error}"
            yield f"group {number} cannot be read: {what}"


def _newest_state(save: Path) -> dict[str, Any] | None:
    steps = [int(path.stem.rpartition("_")[2]) for path in (save / "rollout").glob("global_dataset_state_dict_*.pt")]
    return _state(save, max(steps)) if steps else None


def _state(save: Path, step: int) -> dict[str, Any] | None:
    import torch

    from vime.data.source import state_path

    path = state_path(str(save), step)
    if not path.is_file():
        return None
    try:
        return dict(torch.load(path, weights_only=True)) | {"forgotten": step}
    except Exception as error:  # torch raises whatever its unpickler met
        raise DataError(f"the data state cannot be read: {error}", where=str(path)) from error


def _some(items: Sequence[int]) -> str:
    shown = ", ".join(map(str, items[:_NAMED]))
    return shown + (f" and {len(items) - _NAMED} more" if len(items) > _NAMED else "")
