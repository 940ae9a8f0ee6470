"""A disk that is full, torn, read-only or stuck, descriptors that ran out, a process that stood still: a clear line, and the data kept."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.vime.durable.conftest import answer
from tests.vime.durable.test_store import Open, labels, step
from vime.data.source import RolloutDataSourceWithBuffer
from vime.durable import history
from vime.durable.audit import audit
from vime.durable.queue import control_folder
from vime.durable.store import DurableStore
from vime.durable.writer import Writer
from vime.errors import DataError, MachineError

ROOT = Path(__file__).resolve().parents[3]

FULL = """
import os, pickle, resource, sys
from vime.data.source import RolloutDataSourceWithBuffer
from vime.durable.store import DurableStore
from vime.errors import VimeError
from tests.vime.durable.test_store import step
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
args = pickle.load(open(sys.argv[1], "rb"))
store = DurableStore(args, RolloutDataSourceWithBuffer(args))
store.load(-1)
step(store, 0)
limit = getattr(resource, sys.argv[2])
resource.setrlimit(limit, (int(sys.argv[3]), resource.getrlimit(limit)[1]))
try:
    for number in range(1, 6):
        step(store, number)
except VimeError as error:
    print(error.render(), flush=True)
    os._exit(error.exit_code)  # without descriptors not even an interpreter ends well
"""


@pytest.mark.parametrize(
    ("limit", "value", "words"),
    [
        ("RLIMIT_FSIZE", 60_000, "File too large|no space|its disk may be full or failing"),
        ("RLIMIT_NOFILE", 0, "Too many open files|open files"),
    ],
)
def test_no_room_is_told_and_what_was_written_is_kept(
    open_durable: Open, straw_args: Callable[..., Namespace], tmp_path: Path, limit: str, value: int, words: str
) -> None:
    import pickle
    import re

    args = straw_args()
    (tmp_path / "args").write_bytes(pickle.dumps(args))
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "args"), limit, str(value)],
        cwd=ROOT, capture_output=True, text=True, timeout=120, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == MachineError.exit_code, done.stdout + done.stderr
    assert done.stdout.startswith("error: ")
    assert re.search(words, done.stdout), done.stdout
    assert "the same command resumes" in done.stdout
    assert "Traceback" not in done.stderr
    store = open_durable()
    batch = store.planned(0)
    assert batch is not None
    assert labels(batch.tasks) == ["0", "1", "2", "3"]
    assert audit(Path(args.save), deep=True).clean


ON_A_MOUNT = """
import os, pickle, subprocess, sys
from pathlib import Path
args = pickle.load(open(sys.argv[1], "rb"))
def mount(*options):
    if subprocess.run(["mount", *options, "tmpfs", args.save]).returncode:
        sys.exit(99)
mount("-t", "tmpfs", "-o", "size=300k")
from vime.data.source import RolloutDataSourceWithBuffer
from vime.durable.audit import audit
from vime.durable.store import DurableStore
from vime.errors import VimeError
from tests.vime.durable.test_store import step
import straw.tensor
prompts = RolloutDataSourceWithBuffer(args).prompts  # and all that is imported for them, once
def run(steps):
    if child := os.fork():
        return os.waitpid(child, 0)
    store = None
    try:
        store = DurableStore(args, RolloutDataSourceWithBuffer(args, prompts))
        store.load(-1)
        for number in range(steps):
            if store.planned(number) is None:
                step(store, number)
            else:
                store.trained(number)
    except VimeError as error:
        print(error.render().replace(chr(10), " "), error.exit_code, flush=True)
    if store is not None:
        store.close()
    os._exit(0)
run(400)
mount("-o", "remount,size=64m")
run(3)
report = audit(Path(args.save), deep=True)
print(report.trained_steps, report.findings, flush=True)
mount("-o", "remount,ro")
run(1)
"""


def test_a_full_disk_and_one_that_became_read_only(straw_args: Callable[..., Namespace], tmp_path: Path) -> None:
    """On a file system of its own: full in the middle of a run, larger for the next, then not to be written at all."""
    import pickle

    args = straw_args()
    Path(args.save).mkdir()
    (tmp_path / "args").write_bytes(pickle.dumps(args))
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", ON_A_MOUNT, str(tmp_path / "args")],
        cwd=ROOT, capture_output=True, text=True, timeout=120, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    if done.returncode == 99 or done.stderr.startswith("unshare"):
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    assert "Traceback" not in done.stderr, done.stderr
    full, whole, read_only = done.stdout.splitlines()
    assert full.startswith("error: ")
    assert "space" in full or "disk may be full" in full, full
    assert full.endswith(f"the same command resumes {MachineError.exit_code}")
    assert whole == "3 ()"
    assert "opening the rollout queue: Read-only file system" in read_only
    assert "the folder must be writable for this user" in read_only


@pytest.mark.parametrize("cut", [1, 3, 40, 200])
def test_a_torn_journal_loses_its_last_word_only(open_durable: Open, cut: int) -> None:
    store = open_durable()
    step(store, 0)
    step(store, 1)
    store.close()
    journal = control_folder(store.pool, "b0000") / "control" / "journal.log"
    os.truncate(journal, journal.stat().st_size - cut)
    store = open_durable()
    batch = store.planned(0)
    assert batch is not None
    assert labels(batch.tasks) == ["0", "1", "2", "3"]
    for number in (2, 3):
        step(store, number)
    assert audit(Path(store.args.save), deep=True).findings == () or store.planned(1) is not None


def test_a_damaged_journal_is_refused(open_durable: Open) -> None:
    store = open_durable()
    step(store, 0)
    store.close()
    journal = control_folder(store.pool, "b0000") / "control" / "journal.log"
    data = bytearray(journal.read_bytes())
    data[len(data) // 2] ^= 1
    journal.write_bytes(data)
    with pytest.raises(DataError, match="the queue is damaged"):
        open_durable()
    assert journal.read_bytes() == bytes(data)


def test_a_lost_pack_is_refused(open_durable: Open) -> None:
    store = open_durable()
    step(store, 0)
    store.close()
    for pack in store.pool.folder.glob("raw/*/*/*.pack"):
        pack.unlink()
    with pytest.raises((DataError, MachineError), match="reading the rollout queue"):
        open_durable()


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EMFILE, errno.EIO])
def test_errors_of_the_file_system_are_told_with_their_remedy(tmp_path: Path, code: int) -> None:
    from vime.durable.faults import told

    with pytest.raises(MachineError) as caught, told(tmp_path, "saving"):
        raise OSError(code, os.strerror(code))
    assert caught.value.render().startswith(f"error: {tmp_path}: saving: {os.strerror(code)}\n  hint: ")


def test_a_folder_that_cannot_be_made(straw_args: Callable[..., Namespace], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    args = straw_args("--rollout-data-dir", str(tmp_path / "file" / "queue"))
    with pytest.raises(MachineError, match="opening the rollout queue: Not a directory"):
        DurableStore(args, RolloutDataSourceWithBuffer(args))


def test_no_step_leaves_a_descriptor_behind(open_durable: Open) -> None:
    """Packs fill and are freed, checkpoints come and go; public report vime#441 is of a run that died of descriptors after many updates."""
    store = open_durable(-1, "--rollout-queue-online-gc", "--rollout-queue-segment-mib", "1")
    counts = []
    for number in range(40):
        step(store, number, save=number % 4 == 3)
        if number in (11, 39):
            counts.append(len([*Path("/proc/self/fd").iterdir()]))
    assert counts[1] <= counts[0] + 2, counts


def test_too_few_descriptors_are_told_at_the_start(straw_args: Callable[..., Namespace], monkeypatch: Any) -> None:
    from vime import environment

    monkeypatch.setattr(environment, "raise_file_limit", lambda: environment.FileLimit(1024, 1024, 1024))
    args = straw_args("--vllm-server-concurrency", "512")
    with pytest.raises(MachineError, match="1024 files may be open, this run may need 1536"):
        DurableStore(args, RolloutDataSourceWithBuffer(args))


def test_a_lease_that_ran_out_is_taken_again(open_durable: Open) -> None:
    """As after a suspended machine: the process stood still for longer than its leases last."""
    store = open_durable()
    tasks = store.claim(4)
    store.sync()
    queue: Any = store.queue
    real = queue._coordinator.clock
    queue._coordinator.clock = lambda: real() + 1000.0
    queue._beat -= 1000.0
    for task in tasks:
        store.accept(task.task_id, answer(task).group)
    store.plan(0, [task.task_id for task in tasks])
    store.sync()
    known = history.read(control_folder(store.pool, "b0000"))
    assert known.batches == {0: (0, 1, 2, 3)}
    assert [entry.state for entry in known.tasks.values()] == ["ready"] * 4


@pytest.mark.parametrize("jump", [-1e6, 1e6])
def test_clocks_that_jump_change_nothing(open_durable: Open, monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    """The wall clock is set, and the machine is started anew: then the clock that leases are measured by begins again, at whatever."""
    import time

    wall = time.time
    store = open_durable()
    step(store, 0)
    monkeypatch.setattr(time, "time", lambda: wall() + jump)
    step(store, 1)
    queue: Any = store.queue
    real = queue._coordinator.clock
    queue._coordinator.clock = lambda: real() + jump
    tasks = store.claim(4)
    store.sync()
    store = open_durable()  # with the clock as it was
    assert [store.planned(number) is not None for number in (0, 1, 2)] == [True, True, False]
    for number in (0, 1):
        store.trained(number)
    assert labels(store.claim(4)) == labels(tasks)
    assert audit(Path(store.args.save), deep=True).findings == ()


def test_a_disk_that_hangs_has_a_deadline(open_durable: Open) -> None:
    import threading

    store = open_durable()
    stuck = threading.Event()
    from vime.durable.writer import Act

    writer = Writer(store.queue, deadline=0.2)  # type: ignore[arg-type]
    writer.put(Act(lambda queue: bool(stuck.wait(30)) and None))
    with pytest.raises(MachineError, match=r"did not commit within 0 s"):
        writer.barrier()
    stuck.set()
    writer.close()
