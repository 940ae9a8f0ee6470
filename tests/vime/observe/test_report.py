"""The page and the trace of a run, made from its records alone."""

from __future__ import annotations

import itertools
import json
import math
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from vime.cli.app import cli
from vime.errors import UsageError
from vime.files import append_line
from vime.observe import charts, spans, trace
from vime.observe.metrics import MetricsFile
from vime.observe.report import render, time_split
from vime.sample import Sample, Status, VersionSpan


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """30 steps with two evaluations; a hostile answer among the samples."""
    metrics = MetricsFile(tmp_path)
    metrics.log("engine", 0, {"engine/patch_stack": "abc123", "engine/patches": ["late-kv.patch"]})
    metrics.log("eval", 0, {"datasets": ["greedy"], "eval/greedy": 0.1})
    for step in range(30):
        metrics.log(
            "step",
            step,
            {
                "rollout/raw_reward": step / 30,
                "train/train_rollout_logprob_abs_diff": 1e-7 * (1 + step % 3),
                "train/grad_norm": None if step == 3 else 1.0,
                "rollout/staleness/max": float(step % 2),
                "perf/step_time": 2.0 + (step == 7) * 6,
                "perf/rollout_time": 1.0,
                "perf/actor_train_wall_time": 0.5,
                "perf/update_weights_time": 0.25,
            },
        )
        sample = Sample(
            index=step, group_index=step, prompt="<b>q</b>", tokens=[1, 2, 3], response_length=2, loss_mask=[1, 1]
        )
        sample.response, sample.reward, sample.status = "<script>alert(1)</script>", 0.5, Status.COMPLETED
        sample.version_spans = [VersionSpan(str(step), 0, 2)]
        sample.trace = [{"name": "generate", "start": 100.0 + step, "end": 100.5 + step}]
        append_line(tmp_path / trace.FILE, trace.life(sample, step, [("generate", 100.0 + step, 101.0 + step)]))
        append_line(tmp_path / spans.FILE, spans.record(step, [sample, sample], 8))
    metrics.log("eval", 30, {"datasets": ["greedy"], "eval/greedy": 0.9})
    metrics.close()
    return tmp_path


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_page_says_what_the_records_say_and_needs_nothing_else(run: Path) -> None:
    done = CliRunner().invoke(cli, ["report", str(run)])
    assert done.exit_code == 0, done.output
    page = (run / "report.html").read_text()
    tags = Tags()
    tags.feed(page)
    assert not tags.links
    assert "script" not in tags.seen
    for said in (
        "patch stack abc123: late-kv.patch",
        "0.100 → 0.900",
        "3.0e-07",
        "longest step: 8, 8.00 s, 4.0 times the median",
    ):
        assert said in page, said
    assert "&lt;script&gt;alert(1)" in page
    assert page.count("<svg") >= 5


def test_time_adds_up_to_the_steps(run: Path) -> None:
    shares = dict(
        time_split(
            [{"rollout_id": 0, "perf/step_time": 4.0, "perf/rollout_time": 9.0, "perf/actor_train_wall_time": 3.0}]
        )
    )
    assert shares == {"generate": 1.0, "train": 3.0, "update weights": 0.0, "other": 0.0}


def test_a_folder_without_steps_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no training step"):
        render(tmp_path)
    assert CliRunner().invoke(cli, ["trace", str(tmp_path)]).exception is not None


def test_samples_of_one_moment_lie_in_lanes_of_their_own(run: Path) -> None:
    done = CliRunner().invoke(cli, ["trace", str(run), "-o", str(run / "out.json")])
    assert done.exit_code == 0, done.output
    events = [event for event in json.loads((run / "out.json").read_text())["traceEvents"] if event["ph"] == "X"]
    assert len(events) == 30 + 60
    for event in events:
        assert event["dur"] >= 1
        assert {"name", "ts", "pid", "tid", "args"} <= event.keys()
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in events:
        tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for intervals in tracks.values():
        intervals.sort()
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(intervals))


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.floats(-1e6, 1e6) | st.just(math.nan)), min_size=1, max_size=40),
    st.booleans(),
)
def test_charts_are_well_formed_and_stay_in_their_frame(points: list[tuple[int, float]], log: bool) -> None:
    drawn = charts.lines([("a & b", sorted(points))], log=log)
    if not any(math.isfinite(y) and (y > 0 or not log) for _, y in points):
        assert drawn == ""
        return
    svg = ElementTree.fromstring(drawn.split("<div")[0])
    for line in svg.iter("polyline"):
        for pair in line.attrib["points"].split():
            x, y = map(float, pair.split(","))
            assert -0.1 <= x <= 460.1
            assert -0.1 <= y <= 200.1


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_ticks_are_few_round_and_inside(low: float, width: float) -> None:
    high = low + width
    if not high - low > abs(low) * 1e-9:
        return
    found = charts.ticks(low, high)
    assert 1 <= len(found) <= 6
    slack = (high - low) * 1e-6
    assert all(low - slack <= tick <= high + slack for tick in found)


def test_the_trainers_wait_is_what_is_left_of_the_step() -> None:
    from vime.observe.derived import waits

    assert waits({"perf/step_time": 4.0, "perf/actor_train_wall_time": 1.0}) == {
        "perf/train_wait_time": 3.0,
        "perf/wait_time_ratio": 0.75,
    }
    assert waits({"perf/step_time": 1.0, "perf/actor_train_wall_time": 1.5})["perf/train_wait_time"] == 0.0
    assert waits({"perf/step_time": 4.0}) == {}
