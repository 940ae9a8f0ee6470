"""Files that are there whole or not at all."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from vime.cli.app import cli
from vime.errors import UsageError
from vime.files import append_line, asked_file, whole_file


def test_a_file_keeps_its_old_content_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_text("old")
    with pytest.raises(TypeError), whole_file(path, synced=True) as stream:
        stream.writelines([b"half", None])  # type: ignore[list-item]
    assert path.read_text() == "old"
    with whole_file(path) as stream:
        stream.write(b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert [one.name for one in tmp_path.iterdir()] == ["state"]


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "none" / "page.html", tmp_path / "file" / "page.html", tmp_path):
        with pytest.raises(UsageError, match="cannot be written"), asked_file(place) as stream:
            stream.write(b"page")
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("verb", ["report", "trace", "plot"])
def test_verbs_say_where_they_cannot_write(tmp_path: Path, verb: str) -> None:
    run = tmp_path / "run"
    run.mkdir()
    append_line(run / "metrics.jsonl", {"kind": "step", "rollout_id": 0, "time": 1.0, "rollout/raw_reward": 0.5})
    append_line(
        run / "trace.jsonl",
        {"rollout_id": 0, "sample": 0, "prompt": "", "response": "", "reward": 0, "status": "completed", "tokens": 1,
         "versions": [], "events": [], "spans": [{"name": "train", "start": 1.0, "end": 2.0}]},
    )  # fmt: skip
    option = "--out" if verb == "plot" else "--output"
    result = CliRunner().invoke(cli, [verb, str(run), option, str(tmp_path / "none" / "file")])
    assert isinstance(result.exception, UsageError), result.exception
    assert "none" in result.exception.render()


def test_lines_are_appended_whole(tmp_path: Path) -> None:
    for number in range(3):
        append_line(tmp_path / "lines", {"number": number, "path": Path("a")})
    assert [json.loads(line)["number"] for line in (tmp_path / "lines").read_text().splitlines()] == [0, 1, 2]


@given(st.lists(st.text("ab", max_size=3), max_size=3), st.text("ab", max_size=3))
def test_half_a_line_of_a_killed_process_is_not_continued(lines: list[str], half: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lines"
        path.write_text("".join(f"{line}\n" for line in lines) + half)
        append_line(path, {"number": 1})
        assert path.read_text() == "".join(f"{line}\n" for line in lines) + '{"number": 1}\n'
