"""`train.py --rollout-data-transport straw`, killed by SIGKILL in every process and phase, resumed by the same command: nothing lost, nothing twice.

The phases are told by what a run writes, since nothing in it exists for the test: its lines, and the files of a checkpoint as they appear.
tests/vime/durable/test_killed.py kills stand-ins at exact points, and by the hundred.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.runtime.driver import GROUP, PROMPTS, Driver, named, nothing_left, pid_of
from vime.durable.audit import audit
from vime.observe.ledger import Ledger
from vime.observe.metrics import read_metrics

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(3600)]

SAVE_EVERY = 2
PATIENCE = 120.0
PROCESSES = {"driver": "", "trainer": "TrainerActor", "manager": "RolloutManager", "engine": "vime.engine.server"}
#: Phase -> the file of the checkpoint after step N whose appearance begins it; None: some time after the line of a step.
PHASES = {
    "generating": None,
    "any": None,
    "saving": "rollout/queue_{step}.json",
    "marking": "iter_{step:07d}",
    "weight update": "rollout/committed_{step}.json",
}
EXIT_CODES = {"driver": -9, "trainer": 30, "manager": 30, "engine": 5}


def flags(folder: Path) -> list[str]:
    return [
        *("--save", str(folder), "--load", str(folder), "--save-interval", str(SAVE_EVERY)),
        *("--rollout-data-transport", "straw", "--rollout-queue-online-gc", "--rollout-queue-segment-mib", "1"),
    ]


def await_phase(driver: Driver, folder: Path, phase: str, chance: random.Random, total: int) -> None:
    """Return when the run is in this phase of a step that comes soon."""
    done = int(driver.until(rf"step +(\d+)/{total}")[1])
    if PHASES[phase] is None:
        began = time.monotonic()
        driver.until(rf"step +{done + 1}/{total}")
        if phase == "any":
            time.sleep(chance.uniform(0.0, time.monotonic() - began))
        return
    # Steps count from 0: of those to come the first that a checkpoint follows.
    path = folder / str(PHASES[phase]).format(step=done - (done + 1) % -SAVE_EVERY)
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        assert driver.process.poll() is None, driver.finish()
        assert time.monotonic() < deadline, path


def strike(driver: Driver, run_id: str, victim: str) -> float:
    """Kill it and wait for the driver's end; the next command comes at once. Returns when it was killed."""
    if victim == "driver":
        killed = time.monotonic()
        driver.process.kill()
    else:
        pid = pid_of(run_id, PROCESSES[victim])
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
    code, output = driver.finish()
    assert code == EXIT_CODES[victim], (victim, output)
    if victim != "driver":
        assert "error: " in output
        assert "Traceback" not in output, output
        assert "the same command" in output
    return killed


def hold_to_account(folder: Path, total: int) -> None:
    """Every step, prompt and sample once, and proven."""
    report = audit(folder, deep=True)
    assert report.findings == ()
    assert (report.trained_steps, report.committed) == (total, total - 1)
    account = Ledger(folder, total).account()
    assert (account.prompts, account.samples, account.most) == (total * PROMPTS, total * PROMPTS * GROUP, 1)
    steps = read_metrics(folder, "step")
    assert [one["rollout_id"] for one in steps] == list(range(total))
    # Also after every resume: the engines have the trainer's weights before they are used.
    assert max(one["train/train_rollout_logprob_abs_diff"] for one in steps) <= 1e-5


def test_killed_in_every_process_and_phase(work: Path, start: Callable[..., Driver]) -> None:
    chance = random.Random(1)
    strikes = list(itertools.product(PROCESSES, PHASES))
    chance.shuffle(strikes)
    total = 6 * len(strikes)
    folder = work / "killed"
    run_id = named("killed")
    back: list[float] = []
    killed = None
    for victim, phase in strikes:
        driver = start(run_id, total, *flags(folder))
        if killed is not None:
            driver.until(rf"step +\d+/{total}")
            back.append(time.monotonic() - killed)
        await_phase(driver, folder, phase, chance, total)
        killed = strike(driver, run_id, victim)
        assert audit(folder, deep=True).findings == (), (victim, phase)
    driver = start(run_id, total, *flags(folder))
    code, output = driver.finish()
    assert code == 0, output
    hold_to_account(folder, total)
    nothing_left(run_id, seconds=0)
    print(f"{len(strikes)} kills; seconds from a kill to the next step: {sorted(round(one, 1) for one in back)}")


def test_a_trainer_is_replaced_again_and_again_while_the_engine_stays(work: Path, start: Callable[..., Driver]) -> None:
    """With --use-fault-tolerance one process of the driver goes through all of it, and the server is never started anew."""
    chance = random.Random(2)
    phases = [*PHASES] * 2
    total = 6 * len(phases)
    folder, run_id = work / "replaced", named("replaced")
    driver = start(run_id, total, *flags(folder), "--use-fault-tolerance")
    driver.until(rf"step +{SAVE_EVERY}/{total}")
    engine = pid_of(run_id, PROCESSES["engine"])
    for phase in phases:
        await_phase(driver, folder, phase, chance, total)
        os.kill(pid_of(run_id, PROCESSES["trainer"]), signal.SIGKILL)
        driver.until(r"trainer rank 0 died")
        driver.until(r"going on at step \d+")
        assert pid_of(run_id, PROCESSES["engine"]) == engine
    code, output = driver.finish()
    assert code == 0, output
    hold_to_account(folder, total)
    nothing_left(run_id, seconds=0)


def test_a_stalled_engine_is_told_and_the_run_goes_on_after_it(work: Path, start: Callable[..., Driver]) -> None:
    """It lives and does not answer, as on a hanging device: requests have a deadline, and what they were for has a fate."""
    total, folder, run_id = 6, work / "stalled", named("stalled")
    patience = ("--rollout-request-timeout", "5", "--rollout-request-retries", "0")
    driver = start(run_id, total, *flags(folder), *patience)
    driver.until(rf"step +{SAVE_EVERY}/{total}")
    os.kill(pid_of(run_id, PROCESSES["engine"]), signal.SIGSTOP)
    code, output = driver.finish()
    assert code == EXIT_CODES["engine"], output
    assert "--max-failed-sample-ratio" in output
    nothing_left(run_id, seconds=0)
    driver = start(run_id, total, *flags(folder), *patience)
    code, output = driver.finish()
    assert code == 0, output
    report = audit(folder, deep=True)
    assert report.findings == ()
    assert report.trained_steps == total
    assert {fate.reason for fate in report.fates.values() if fate.kind == "dropped"} <= {"failed:timeout"}
