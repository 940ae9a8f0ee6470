"""A small run around the real store and the real queue, to be killed anywhere: a manager process and a trainer process, both real.

`python victim.py ARGS` imports once, then forks a run for each line that it reads, so that hundreds of kills take a minute. The trainer's weights
are a digest over everything it trained, in order: two runs that trained the same have the same weights. Every place where a process may be
killed is a `point`; Straw's own failpoints are points too.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import pickle
import random
import signal
import sys
from argparse import Namespace
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.vime.durable.conftest import answer
from vime.data.source import RolloutDataSourceWithBuffer
from vime.durable.store import DurableStore
from vime.observe.ledger import Ledger
from vime.rollout.pool.store import Task

SIZE = 4
SAVE_EVERY = 3
MARKER = "latest_checkpointed_iteration.txt"


class Points:
    """Counts the points that a process passes by name, and dies at the one it was told: (name, how many of it before)."""

    def __init__(self, role: str, log: Path, deadly: tuple[str, int] | None) -> None:
        self.role, self.log, self.deadly = role, log, deadly
        self.passed: Counter[str] = Counter()

    def __call__(self, name: str) -> None:
        name = f"{self.role}:{name}"
        if self.deadly == (name, self.passed[name]):
            with open(self.log, "a", encoding="utf-8") as stream:
                stream.write(name + "\n")
            os.kill(os.getpid(), signal.SIGKILL)
        self.passed[name] += 1


def trainer(pipe: Connection, root: Path, point: Points) -> None:
    """Answers (load) with (step, weights), (train, text) with weights, (save, step) with None, until the pipe closes."""
    weights = "start"
    while True:
        try:
            request = pipe.recv()
        except EOFError:
            return
        match request:
            case ("load",):
                marker = root / MARKER
                step = int(marker.read_text()) if marker.is_file() else -1
                if step >= 0:
                    weights = json.loads((root / f"iter_{step:07d}" / "manifest.json").read_text())["weights"]
                point("loaded")
                pipe.send((step, weights))
            case ("train", text):
                point("training")
                weights = hashlib.sha256((weights + text).encode()).hexdigest()
                point("trained")
                pipe.send(weights)
            case ("save", step):
                folder = root / f"iter_{step:07d}"
                folder.mkdir(exist_ok=True)
                point("saving")
                (folder / "manifest.json.tmp").write_text(json.dumps({"weights": weights}))
                (folder / "manifest.json.tmp").replace(folder / "manifest.json")
                point("saved, not marked")
                (root / "marker.tmp").write_text(str(step))
                (root / "marker.tmp").replace(root / MARKER)
                point("marked")
                pipe.send(None)
            case ("points",):
                pipe.send(point.passed)


def let_go_of_the_queue() -> None:
    """A forked process would hold the owner's lock for a moment longer than the manager lives; a real trainer is no child of it."""
    for entry in Path("/proc/self/fd").iterdir():
        if entry.is_symlink() and entry.readlink().name == "owner.lock":
            os.close(int(entry.name))


class Trainer:
    """The trainer's process as the manager sees it. Its death is an EOFError or a broken pipe."""

    def __init__(self, root: Path, log: Path, deadly: tuple[str, int] | None) -> None:
        self.pipe, other = multiprocessing.Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self.pipe.close()
            let_go_of_the_queue()
            trainer(other, root, Points("trainer", log, deadly))
            os._exit(0)
        other.close()

    def ask(self, *request: Any) -> Any:
        self.pipe.send(request)
        return self.pipe.recv()

    def end(self) -> None:
        self.pipe.close()
        os.waitpid(self.pid, 0)


def run(args: Namespace, prompts: Any, total: int, ahead: bool, seed: int, deadly: tuple[str, int] | None) -> None:
    """All steps, or death. A trainer that dies is replaced, and its steps since the checkpoint are trained again."""
    root = Path(args.save)
    root.mkdir(exist_ok=True)
    log = root / "killed.txt"
    point = Points("manager", log, deadly)
    store = DurableStore(args, RolloutDataSourceWithBuffer(args, prompts), fault=point)
    while True:
        learner = Trainer(root, log, deadly)
        try:
            step, weights = learner.ask("load")
            store.load(step)
            ledger = Ledger(root, step + 1)
            loop(store, learner, ledger, point, range(step + 1, total), weights, random.Random(seed) if ahead else None)
            break
        except (EOFError, BrokenPipeError, ConnectionResetError):
            learner.end()
            deadly = None  # the new one lives
    passed = point.passed + learner.ask("points")
    learner.end()
    store.close()
    (root / "end.json").write_text(json.dumps({"weights": weights_of(root, total), "points": passed}))


def weights_of(root: Path, total: int) -> str:
    return str(json.loads((root / f"iter_{total - 1:07d}" / "manifest.json").read_text())["weights"])


def loop(
    store: DurableStore,
    learner: Trainer,
    ledger: Ledger,
    point: Points,
    steps: range,
    weights: str,
    chance: random.Random | None,
) -> None:
    """As train.py does it. With `chance` generation runs ahead of training, in any order."""
    for step in steps:
        batch = store.planned(step)
        if batch is None:
            fill(store, point, step, weights, chance)
            ready = [task.task_id for task in store.ready()]
            if chance is not None:
                chance.shuffle(ready)
            batch = store.plan(step, sorted(ready[:SIZE] if chance is not None else sorted(ready)[:SIZE]))
            point("planned")
        weights = learner.ask("train", repr([sample.to_dict() for group in batch.groups for sample in group]))
        ledger.trained(step, weights, {s.index or 0: s.group_index or 0 for group in batch.groups for s in group})
        store.trained(step)
        store.sync(step - 1)
        point("step trained")
        if (step + 1) % SAVE_EVERY == 0 or step + 1 == steps.stop:
            store.save(step)
            store.sync()
            point("data half saved")
            learner.ask("save", step)
            store.committed(step)
            point("committed")
        point("weight update")


def fill(store: DurableStore, point: Points, step: int, weights: str, chance: random.Random | None) -> None:
    """Claim and answer until a batch is ready. Every seventh group is filtered out; some are given back half done."""
    version = int(weights[:4], 16) % 7 if weights != "start" else 0
    while len(store.ready()) < SIZE:
        short = SIZE - len(store.ready())
        tasks = store.claim(short if chance is None else short + 3)
        point("claimed")
        if chance is not None:
            chance.shuffle(tasks)
        for task in tasks:
            point("generating")
            if task.finished:
                store.accept(task.task_id, task.group)
            elif task.task_id % 7 == 6:
                store.drop(task.task_id, step, "filter:seventh")
            elif task.task_id % 3 == 1 and not task.group[0].response_length:
                store.release(task.task_id, half(task, version).group, "interrupted")
            else:
                store.accept(task.task_id, answer(task, version).group)
                point("accepted")


def half(task: Task, version: int) -> Task:
    return answer(task, version, unfinished=True)


def main() -> None:
    """Reads {"save", "total", "ahead", "seed", "deadly"} by line, answers with the wait status of each run."""
    with open(sys.argv[1], "rb") as stream:
        args = pickle.load(stream)
    prompts = RolloutDataSourceWithBuffer(args).prompts
    for line in sys.stdin:
        task = json.loads(line)
        args.save = args.load = task["save"]
        args.rollout_data_dir = str(Path(task["save"]) / "rollout_data")
        child = os.fork()
        if child == 0:
            deadly = (task["deadly"][0], task["deadly"][1]) if task["deadly"] else None
            code = 1
            try:
                run(args, prompts, task["total"], task["ahead"], task["seed"], deadly)
                code = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            os._exit(code)
        _, status = os.waitpid(child, 0)
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)


if __name__ == "__main__":
    main()
