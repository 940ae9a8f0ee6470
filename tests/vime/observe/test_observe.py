"""What a run writes down and shows."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime.errors import DataError, UsageError
from vime.files import append_line
from vime.observe import trace
from vime.observe.console import sparkline, step_line, table
from vime.observe.ledger import Account, Ledger, count
from vime.observe.metrics import FILE, MetricsFile, read_lines, read_metrics
from vime.observe.plot import plot_run
from vime.observe.summary import summary
from vime.observe.trackers import TensorBoard
from vime.sample import Sample, VersionSpan


def record(folder: Path, steps: int = 4) -> None:
    file = MetricsFile(folder)
    file.log("eval", 0, {"eval/words": 0.1, "datasets": ["words"]})
    for i in range(steps):
        parity = {
            "train/train_rollout_logprob_abs_diff": 1e-7 * (i + 1),
            "train/train_rollout_logprob_abs_diff_max": 1e-6,
        }
        file.log("step", i, {"rollout/raw_reward": i / steps} | parity)
    file.log("eval", steps, {"eval/words": 0.9, "datasets": ["words"]})
    file.close()


def test_metrics_read_back_and_a_step_done_again_counts_once(tmp_path: Path) -> None:
    record(tmp_path)
    again = MetricsFile(tmp_path)
    again.log("step", 3, {"rollout/raw_reward": 0.5, "bad": math.nan})
    again.close()
    steps = read_metrics(tmp_path, "step")
    assert [one["rollout_id"] for one in steps] == [0, 1, 2, 3]
    assert steps[3]["rollout/raw_reward"] == 0.5
    assert steps[3]["bad"] is None
    assert len(read_metrics(tmp_path)) == 6


def test_half_a_line_of_a_killed_run_is_left_out(tmp_path: Path) -> None:
    record(tmp_path)
    with open(tmp_path / FILE, "a") as file:
        file.write('{"kind": "step", "rollout_id": 4, "ti')
    assert len(read_metrics(tmp_path, "step")) == 4


@given(st.lists(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), max_size=10), max_size=5))
def test_the_account_counts_what_was_trained(steps: list[list[tuple[int, int]]]) -> None:
    flat = [sample for step in steps for sample, _ in step]
    account = count(steps)
    assert account.samples == len(set(flat))
    assert account.prompts == len({group for step in steps for _, group in step})
    assert account.most == max((flat.count(sample) for sample in flat), default=0)


def test_ledger_forgets_the_steps_that_a_resume_does_again(tmp_path: Path) -> None:
    first = Ledger(tmp_path, 0)
    for step in range(3):
        first.trained(step, str(step), {10 * step + i: step for i in range(4)})
    first.close()
    resumed = Ledger(tmp_path, 2)
    resumed.trained(2, "2", {20 + i: 2 for i in range(4)})
    assert resumed.account() == Account(3, 12, 1)
    assert str(resumed.account()) == "3 prompts, 12 samples, each trained once"
    resumed.trained(3, "3", {20: 2})
    assert str(resumed.account()) == "3 prompts, 12 samples, up to 2 times trained"
    resumed.close()


def test_the_closing_text_says_what_the_records_say(tmp_path: Path) -> None:
    record(tmp_path)
    answers = [{"prompt": "rab=", "response": "ba", "label": "ba", "reward": 1.0}]
    text = summary(read_metrics(tmp_path, "step"), read_metrics(tmp_path, "eval"), answers, Account(2, 16, 1))
    assert "words" in text
    assert "0.100  0.900" in text
    assert "rab=ba   wanted ba, reward 1.00" in text
    assert "at most 4.0e-07 in any of 4 steps, largest single token 1.0e-06" in text
    assert "2 prompts, 16 samples, each trained once" in text


def test_the_curve_is_a_picture_and_an_empty_run_has_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no training step"):
        plot_run(tmp_path)
    record(tmp_path)
    path = plot_run(tmp_path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 10_000


def test_tensorboard_files_hold_the_numbers(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    board = TensorBoard(tmp_path)
    board.log(3, {"rollout/raw_reward": 0.25})
    board.close()
    (file,) = tmp_path.iterdir()
    found = [(e.step, v.tag, v.tensor.float_val[0]) for e in EventFileLoader(str(file)).Load() for v in e.summary.value]
    assert found == [(3, "rollout/raw_reward", 0.25)]


def test_a_step_is_one_line_with_units_and_without_what_was_not_measured() -> None:
    line = step_line(8, 40, {"rollout/raw_reward": 0.5, "perf/rollout_time": 1.25})
    assert line == "step  9/40  reward 0.500  [s: generate 1.25]"
    assert "\n" not in line


@given(st.lists(st.floats(-1e6, 1e6), max_size=40))
def test_sparkline_has_a_bar_a_value(values: list[float]) -> None:
    line = sparkline(values)
    assert sum(character in "▁▂▃▄▅▆▇█" for character in line) == len(values)


def test_tables_are_aligned() -> None:
    lines = table([["", "before"], ["long name", "1"]]).splitlines()
    assert len({len(line) for line in lines}) == 1


def test_the_life_of_a_sample_is_one_json_line(tmp_path: Path) -> None:
    sample = Sample(index=4, group_index=1, prompt="rab=", response="ba", reward=1.0, response_length=3)
    sample.version_spans = [VersionSpan("2", 0, 3)]
    append_line(tmp_path / trace.FILE, trace.life(sample, 2, [("generate", 1.0, 1.5)]))
    (line,) = (tmp_path / trace.FILE).read_text().splitlines()
    life: dict[str, Any] = json.loads(line)
    assert life["versions"] == [["2", 0, 3]]
    assert life["spans"] == [{"name": "generate", "start": 1.0, "end": 1.5}]


@pytest.mark.parametrize("line", [b"{no json}\n", b"3\n", b"\xff\n"])
def test_a_damaged_line_is_named_and_half_a_line_at_the_end_is_not_one(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / FILE
    path.write_bytes(b'{"a": 1}\n{"b"')
    assert list(read_lines(path)) == [{"a": 1}]
    path.write_bytes(b'{"a": 1}\n' + line)
    with pytest.raises(DataError, match="JSON") as error:
        list(read_lines(path))
    assert str(error.value.where) == f"{path}:2"
