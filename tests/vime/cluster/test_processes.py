"""Nothing of a run survives it, whatever kills the driver. Real processes, no Ray."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from vime.cli.app import cli
from vime.cluster import processes

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
IGNORE = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"
SLEEPER, STUBBORN = ([sys.executable, "-c", code] for code in (SLEEP, IGNORE))
# A driver: known, guarded, with a child that detached itself from every process group and session of its parent.
DRIVER = """
import os, subprocess, sys, time
from argparse import Namespace
from vime.cluster.session import Session
run_id, folder, sleeper = sys.argv[1:]
with Session(Namespace(run_id=run_id, run_dir=folder)) as session:
    child = subprocess.Popen([sys.executable, "-c", sleeper], start_new_session=True, stdout=subprocess.PIPE)
    child.stdout.readline()
    open(f"/dev/shm/vime-{run_id}-w1-0", "w").write("weights")
    print(child.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def run_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("VIME_RUNTIME_DIR", str(tmp_path / "runtime"))
    name = f"test-{uuid.uuid4().hex[:8]}"
    yield name
    processes.sweep(name, grace=0)


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def start(command: list[str], run_id: str) -> subprocess.Popen[str]:
    environment = os.environ | {processes.RUN_VARIABLE: run_id}
    return subprocess.Popen(command, env=environment, start_new_session=True, stdout=subprocess.PIPE, text=True)


def start_driver(run_id: str, folder: Path, child: str = SLEEP) -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, "-c", DRIVER, run_id, str(folder), child]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert driver.stdout is not None
    return driver, int(driver.stdout.readline())


def test_sweep_ends_the_runs_processes_and_files_and_no_others(run_id: str) -> None:
    mine, other = start(SLEEPER, run_id), start(SLEEPER, run_id + "x")
    shm = Path(f"/dev/shm/vime-{run_id}-w1-0")
    shm.write_text("weights")
    try:
        assert [one.pid for one in processes.sweep(run_id)] == [mine.pid]
        assert mine.wait(5) == -signal.SIGTERM
        assert not shm.exists()
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_sweep_kills_what_ignores_a_polite_request(run_id: str) -> None:
    stubborn = start(STUBBORN, run_id)
    assert stubborn.stdout is not None
    assert stubborn.stdout.readline() == "up\n"
    processes.sweep(run_id, grace=0.1)
    assert stubborn.wait(5) == -signal.SIGKILL


def test_nothing_survives_a_killed_driver(run_id: str, tmp_path: Path) -> None:
    """Public report AReaL#622: after a crash, engine processes stayed with parent 1 and kept the memory."""
    driver, child = start_driver(run_id, tmp_path / "run")
    driver.kill()
    driver.wait()
    assert eventually(lambda: processes.start_ticks(child) is None)
    assert eventually(lambda: not processes.records())
    assert processes.files(run_id) == []
    assert processes.processes(run_id) == []


def test_stop_ends_a_run_as_ctrl_c_would(run_id: str, tmp_path: Path) -> None:
    driver, child = start_driver(run_id, tmp_path / "run")
    shown = json.loads(CliRunner().invoke(cli, ["ps", "--json"]).output)["data"]
    mine = next(run for run in shown if run["run_id"] == run_id)
    assert mine["driver"] == driver.pid
    assert [one["pid"] for one in mine["processes"]] == [child]
    result = CliRunner().invoke(cli, ["stop", run_id])
    assert result.exit_code == 0, result.output
    assert driver.wait(5) != 0
    assert processes.processes(run_id) == []
    assert processes.files(run_id) == []
    assert run_id not in [one.run_id for one in processes.records()]


def test_a_second_run_of_the_same_name_is_refused(run_id: str, tmp_path: Path) -> None:
    driver, _ = start_driver(run_id, tmp_path / "run")
    second = subprocess.run(
        [sys.executable, "-c", DRIVER, run_id, str(tmp_path / "run2"), SLEEP],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert f"run {run_id} is alive already" in second.stderr
    assert driver.poll() is None
    driver.kill()
    driver.wait()


def test_the_same_command_at_once_after_a_kill_is_left_alone_by_the_old_guardian(run_id: str, tmp_path: Path) -> None:
    driver, child = start_driver(run_id, tmp_path / "run", IGNORE)  # the guardian takes its time over this one
    driver.kill()
    driver.wait()
    driver, again = start_driver(run_id, tmp_path / "run")
    assert processes.start_ticks(child) is None
    assert not eventually(lambda: processes.start_ticks(again) is None, seconds=3)
    assert [one.driver for one in processes.records()] == [driver.pid]
    driver.kill()
    driver.wait()


def test_a_process_with_a_reused_pid_is_not_taken_for_the_driver() -> None:
    record = processes.RunRecord("x", os.getpid(), (processes.start_ticks(os.getpid()) or 0) + 1, "", "", "")
    assert not record.alive
