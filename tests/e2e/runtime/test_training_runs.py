"""`train.py` as a user runs it: interrupted in every way, resumed by the same command, complete in the end.

One chain over one checkpoint folder, since each start costs half a minute: Ctrl-C, death of the engine, of the trainer, of the
driver, and a last run that finishes. After each: a clear message, a non-zero exit, and nothing left on the machine.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vime.cluster import processes
from vime.observe.ledger import Ledger
from vime.observe.metrics import read_metrics
from vime.toy import model, words

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[3]
PROMPTS, GROUP = 4, 2
PATIENCE = 240.0


def named(run: str) -> str:
    """Run ids of this process alone: another checkout may be under test on the same machine."""
    return f"{run}-{os.getpid()}"


class Driver:
    """A running train.py. Its output is read to the end by `finish`, or up to a line by `until`."""

    def __init__(self, flags: list[str]) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "train.py"), *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def until(self, pattern: str) -> re.Match[str]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"{pattern!r} never came:\n{''.join(self.lines)}")

    def finish(self) -> tuple[int, str]:
        assert self.process.stdout is not None
        self.lines += self.process.stdout.readlines()
        return self.process.wait(PATIENCE), "".join(self.lines)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A random model of the toy's shape, prompts, and a registry of its own for `vime ps`."""
    folder = tmp_path_factory.mktemp("runs")
    model.write_model(folder / "start", seed=0)
    stream = words.words(1)
    words.write_rows(folder / "train.jsonl", [next(stream) for _ in range(64)])
    before = os.environ.get("VIME_RUNTIME_DIR")
    os.environ["VIME_RUNTIME_DIR"] = f"/tmp/vt-{os.getpid()}"
    os.environ["OMP_NUM_THREADS"] = "1"
    yield folder
    if before is None:
        del os.environ["VIME_RUNTIME_DIR"]
    else:
        os.environ["VIME_RUNTIME_DIR"] = before


@pytest.fixture
def start(work: Path) -> Iterator[Callable[..., Driver]]:
    drivers: list[Driver] = []
    run_ids: list[str] = []

    def begin(run_id: str, steps: int, *more: str) -> Driver:
        flags = {
            "--hf-checkpoint": work / "start",
            "--prompt-data": work / "train.jsonl",
            "--input-key": "prompt",
            "--label-key": "answer",
            "--rm-type": "reverse_word",
            "--num-rollout": steps,
            "--rollout-batch-size": PROMPTS,
            "--n-samples-per-prompt": GROUP,
            "--rollout-max-response-len": 8,
            "--micro-batch-size": 8,
            "--lr": 1e-3,
            "--device": "cpu",
            "--parity-threshold": 1e-5,
            "--run-id": run_id,
        }
        driver = Driver([str(part) for pair in flags.items() for part in pair] + list(more))
        drivers.append(driver)
        run_ids.append(run_id)
        return driver

    yield begin
    for driver in drivers:
        driver.process.kill()
        driver.process.wait()
    for run_id in run_ids:
        processes.sweep(run_id, grace=0)


def saving(work: Path) -> list[str]:
    folder = str(work / "checkpoint")
    return ["--save", folder, "--load", folder, "--save-interval", "1"]


def nothing_left(run_id: str, seconds: float = 30.0) -> None:
    """No process, no shared memory, no record: at once where the driver cleaned up, soon where the guardian does."""
    deadline = time.monotonic() + seconds
    while processes.processes(run_id) or any(one.run_id == run_id for one in processes.records()):
        assert time.monotonic() < deadline, processes.processes(run_id)
        time.sleep(0.05)
    assert processes.files(run_id) == []


def pid_of(run_id: str, needle: str) -> int:
    return next(one.pid for one in processes.processes(run_id) if needle in one.command)


def test_a_run_that_is_killed_in_every_way_still_does_what_was_asked(work: Path, start: Callable[..., Driver]) -> None:
    """Public reports AReaL#622, verl-omni#433, slime#1558."""
    total = 40

    driver = start(named("ctrl-c"), total, *saving(work))
    driver.until(r"step +2/40")
    os.killpg(driver.process.pid, signal.SIGINT)  # as a terminal does: to the whole foreground group
    code, output = driver.finish()
    assert code == 130, output
    assert "the same command resumes" in output
    nothing_left(named("ctrl-c"), seconds=0)

    driver = start(named("engine"), total, *saving(work))
    resumed = int(driver.until(r"resuming at step (\d+) of 40")[1])
    assert resumed >= 3
    driver.until(r"step +\d+/40")
    os.kill(pid_of(named("engine"), "vime.engine.server"), signal.SIGKILL)
    code, output = driver.finish()
    assert code == 5, output
    assert re.search(r"error: engine 0: the server at \S+ was killed by SIGKILL", output)
    assert "resumes from the last checkpoint" in output
    nothing_left(named("engine"), seconds=0)

    driver = start(named("trainer"), total, *saving(work))
    driver.until(r"step +\d+/40")
    os.kill(pid_of(named("trainer"), "TrainerActor"), signal.SIGKILL)
    code, output = driver.finish()
    assert code == 30, output
    assert re.search(r"error: (trainer|weight)\S*.* died", output)
    nothing_left(named("trainer"), seconds=0)

    driver = start(named("driver"), total, *saving(work))
    driver.until(r"step +\d+/40")
    engine = pid_of(named("driver"), "vime.engine.server")
    driver.process.kill()
    driver.process.wait()
    nothing_left(named("driver"))
    assert processes.start_ticks(engine) is None

    driver = start(named("last"), total, *saving(work))
    code, output = driver.finish()
    assert code == 0, output
    assert re.search(rf"asked for {total} steps, did {total} \(\d+ in this run\)", output)
    assert f"ledger   {total * PROMPTS} prompts, {total * PROMPTS * GROUP} samples, each trained once" in output
    nothing_left(named("last"), seconds=0)

    steps = read_metrics(work / "checkpoint", "step")
    assert [one["rollout_id"] for one in steps] == list(range(total))
    # At step 0, after every update and after every resume.
    assert max(one["train/train_rollout_logprob_abs_diff"] for one in steps) <= 1e-5
    account = Ledger(work / "checkpoint", total).account()
    assert (account.prompts, account.samples, account.most) == (total * PROMPTS, total * PROMPTS * GROUP, 1)
    assert (work / "checkpoint" / "curve.png").read_bytes().startswith(b"\x89PNG")
    lives = [json.loads(line) for line in (work / "checkpoint" / "trace.jsonl").read_text().splitlines()]
    assert {life["rollout_id"] for life in lives} == set(range(total))


def test_disk_transport_tensor_parallel_and_a_dead_engine_that_is_replaced(
    work: Path, start: Callable[..., Driver]
) -> None:
    """Two trainer ranks in one tensor group, two engines, weights by disk; with fault tolerance the death of one costs no step."""
    more = [
        *("--run-dir", str(work / "replaced"), "--update-weight-transport", "disk"),
        *("--update-weight-disk-dir", str(work / "weights"), "--use-fault-tolerance"),
        *("--actor-num-gpus-per-node", "2", "--tensor-model-parallel-size", "2", "--rollout-num-gpus", "2"),
    ]
    driver = start(named("replaced"), 12, *more)
    driver.until(r"step +2/12")
    os.kill(pid_of(named("replaced"), "vime.engine.server"), signal.SIGKILL)
    code, output = driver.finish()
    assert code == 0, output
    assert "did 12 (12 in this run)" in output
    steps = read_metrics(work / "replaced", "step")
    assert sum(one["weights/replaced_engines"] for one in steps) >= 1
    assert max(one["train/train_rollout_logprob_abs_diff"] for one in steps) <= 1e-5
    assert len(list((work / "weights").iterdir())) == 1
    nothing_left(named("replaced"), seconds=0)


def test_disagreement_stops_the_run_before_it_trains(work: Path, start: Callable[..., Driver]) -> None:
    """The limit is below what rounding allows, so the gate must close; it says where the forward passes begin to differ."""
    driver = start(named("gate"), 3, "--run-dir", str(work / "gate"), "--parity-threshold", "1e-12")
    code, output = driver.finish()
    assert code == 1, output
    assert "rollout 0, step 0: refusing to train: |log p trainer - log p engine| mean" in output
    assert "layer" in output
    assert read_metrics(work / "gate", "step") == []
    nothing_left(named("gate"), seconds=0)
