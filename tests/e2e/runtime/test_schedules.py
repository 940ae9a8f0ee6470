"""Schedules that generate while a batch trains, with real engines: versions without gaps, nothing older than the bound, nothing twice."""

from __future__ import annotations

import json
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.runtime.driver import GROUP, PROMPTS, Driver, named
from vime.cluster import processes
from vime.observe.ledger import Ledger
from vime.observe.metrics import read_metrics
from vime.sample import Sample

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1500)]

ANSWER = 48


def note(args: Namespace, groups: list[list[Sample]]) -> None:
    """A sample filter that filters nothing and writes down what every batch holds."""
    batch = [
        {
            "index": sample.index,
            "length": sample.response_length,
            "spans": [list(vars(one).values()) for one in sample.version_spans],
        }
        for group in groups
        for sample in group
    ]
    with open(Path(args.run_dir) / "batches.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(batch) + "\n")


Start = Callable[..., Driver]


@pytest.fixture
def begin(work: Path, start: Start) -> Start:
    """Starts a run of two engines whose answers are long: a random model hardly ever ends one."""

    def begin(name: str, steps: int, *more: str) -> Driver:
        flags = {
            "--rollout-max-response-len": ANSWER,
            "--rollout-num-gpus": 2,
            "--parity-threshold": 1e-4,
            "--run-dir": work / name,
            "--rollout-sample-filter-path": f"{__name__}.note",
        }
        return start(named(name), steps, *(str(part) for pair in flags.items() for part in pair), *more)

    return begin


def finish(driver: Driver) -> None:
    code, output = driver.finish()
    assert code == 0, output


def check(folder: Path, steps: int, lag: int) -> list[dict[str, Any]]:
    """Hold a finished run against its own records. Returns its step records."""
    records = list(read_metrics(folder, "step"))
    assert [record["weights/version"] for record in records] == list(range(2, steps + 2))
    batches = [json.loads(line) for line in (folder / "batches.jsonl").read_text().splitlines()]
    assert [len(batch) for batch in batches] == [PROMPTS * GROUP] * steps
    seen = Counter(one["index"] for batch in batches for one in batch)
    assert set(seen.values()) == {1}
    for step, batch in enumerate(batches):
        for one in batch:
            spans = one["spans"]
            assert spans[0][1] == 0
            assert spans[-1][2] == one["length"]
            assert all(a[2] == b[1] and int(a[0]) <= int(b[0]) for a, b in pairwise(spans))
            assert step + 1 - lag <= int(spans[0][0]) <= int(spans[-1][0]) <= step + 1
    assert all(record["rollout/staleness/max"] <= lag for record in records)
    assert Ledger(folder, steps).account().most == 1
    return records


def mixed(folder: Path) -> int:
    batches = [json.loads(line) for line in (folder / "batches.jsonl").read_text().splitlines()]
    return sum(len({span[0] for span in one["spans"]}) > 1 for batch in batches for one in batch)


def test_updates_in_flight_on_two_engines(work: Path, begin: Start) -> None:
    """PipelineRL with a periodic flush: answers outlive updates, or are interrupted and continued, and every token knows its weights."""
    steps = 8
    flags = ("--flush-cache-interval", "3", "--partial-rollout", "--save", str(work / "kept"), "--save-interval", "4")
    finish(begin("in-flight", steps, *flags))
    records = check(work / "in-flight", steps, lag=2)
    assert [record["weights/flushed"] for record in records] == [float((step + 1) % 3 == 0) for step in range(steps)]
    assert mixed(work / "in-flight") > 0
    # The first batch is all of the present weights, so the gate that compares trainer and engine has judged it.
    assert records[0]["rollout/staleness/max"] == 0
    assert records[0]["train/on_policy_logprob_abs_diff"] < 1e-4
    assert (work / "kept" / "rollout" / "global_dataset_state_dict_7.pt").is_file()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("one-step-ahead", ()),
        ("fully-async", ()),
        ("fully-async-partial", ("--partial-rollout",)),
        ("in-flight-long", ("--flush-cache-interval", "2", "--partial-rollout")),
        (
            "fully-async-durable",
            (
                *("--partial-rollout", "--save", "{work}/durable", "--save-interval", "10"),
                *("--rollout-data-transport", "straw", "--rollout-queue-online-gc", "--rollout-queue-segment-mib", "1"),
            ),
        ),
    ],
)
def test_two_hundred_steps_leave_no_descriptor_behind(
    work: Path, begin: Start, name: str, flags: tuple[str, ...]
) -> None:
    """Public report vime#441: a PipelineRL run with periodic flushes died of file descriptors after many updates."""
    steps, schedule = 200, name.removesuffix("-partial").removesuffix("-long").removesuffix("-durable")
    driver = begin(name, steps, "--rollout-schedule", schedule, *(flag.format(work=work) for flag in flags))
    counts = []
    for step in (20, 190):
        driver.until(rf"step +{step}/")
        counts.append({one.pid: descriptors(one.pid) for one in processes.processes(named(name))})
    finish(driver)
    check(work / name, steps, lag=1 if schedule == "one-step-ahead" else 2)
    assert (mixed(work / name) > 0) == bool(flags)
    early, late = counts
    for pid in early.keys() & late.keys():
        assert late[pid] <= early[pid] + 8, (pid, early[pid], late[pid])


def descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
