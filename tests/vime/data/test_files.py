"""Rows of prompt files and slices of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime.data.files import read_rows, split_slice
from vime.errors import DataError


@given(start=st.none() | st.integers(-30, 30), stop=st.none() | st.integers(-30, 30))
def test_a_path_slice_means_what_python_means(start: int | None, stop: int | None) -> None:
    text = f"a/b.jsonl@[{'' if start is None else start}:{'' if stop is None else stop}]"
    sliced = split_slice(text)
    assert sliced.path == "a/b.jsonl"
    assert list(range(20))[sliced.slice] == list(range(20))[start:stop]


def test_rows_keep_their_numbers_through_slices_and_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"v": 0}\n\n{"v": 1}\n{"v": 2}\n')
    assert [(row.number, row.values["v"]) for row in read_rows(f"{path}@[-2:]")] == [(3, 1), (4, 2)]


def test_parquet_rows_equal_jsonl_rows(tmp_path: Path) -> None:
    rows = [{"input": [{"role": "user", "content": f"q{i}"}], "label": str(i)} for i in range(5)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert [row.values for row in read_rows(str(tmp_path / "a.parquet@[1:4]"))] == [
        row.values for row in read_rows(str(tmp_path / "a.jsonl@[1:4]"))
    ]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", '{"v": 0}\n{"v": \n', r"a\.jsonl:2: not JSON"),
        ("a.jsonl", "[1]\n", r"a\.jsonl:1: the line holds a list"),
        ("a.jsonl", "", "no rows"),
        ("a.csv", "x", "neither jsonl nor parquet"),
        ("a.parquet", "x", "not a parquet file"),
        ("a.jsonl@[7:9]", '{"v": 0}\n', "the file has 1 rows"),
        ("a.jsonl@[x:9]", '{"v": 0}\n', "cannot be read"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name.partition("@")[0]).write_text(content)
    with pytest.raises(DataError) as error:
        read_rows(str(tmp_path / name))
    assert re.search(said, str(error.value))


def test_a_missing_file_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_rows(str(tmp_path / "none.jsonl"))
