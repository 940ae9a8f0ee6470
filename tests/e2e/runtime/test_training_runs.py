"""`train.py` as a user runs it: interrupted in every way, resumed by the same command, complete in the end.

One chain over one checkpoint folder, since each start costs half a minute: Ctrl-C, death of the engine, of the trainer, of the
driver, and a last run that finishes. After each: a clear message, a non-zero exit, and nothing left on the machine.
test_durable_runs.py does the same to runs whose queue is on disk.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.runtime.driver import GROUP, PROMPTS, Driver, named, nothing_left, pid_of, saving
from vime.cluster import processes
from vime.observe.ledger import Ledger
from vime.observe.metrics import read_metrics

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]


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
