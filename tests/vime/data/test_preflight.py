"""Every row is looked at before anything starts."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vime.data.preflight import columns_of, preflight, steps_of
from vime.data.prompts import fingerprint, load_prompts
from vime.errors import DataError

Make = Callable[..., Namespace]


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_missing_label_in_row_17_is_named_before_anything_starts(make_args: Make, tmp_path: Path) -> None:
    """Public reports verl#3450, #5558, #758: the quick start died deep inside Ray with a KeyError."""
    rows = [{"input": f"p{i}", "label": "x"} for i in range(1, 21)]
    del rows[16]["label"]
    args = make_args("--prompt-data", write(tmp_path / "rows.jsonl", rows))
    with pytest.raises(DataError) as error:
        preflight(args)
    assert "1 of 20 rows cannot be used: no label 'label' in row 17" in str(error.value)
    assert error.value.hint is not None
    assert "columns present: input" in error.value.hint


def test_all_faults_are_told_at_once_each_with_its_rows(make_args: Make, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"input": "ok", "label": "1"} for _ in range(30)]
    rows[3] = {"prompt": "no input", "label": "1"}
    for number in range(10, 25):
        rows[number]["input"] = ""
    rows[29]["metadata"] = "text"
    args = make_args("--prompt-data", write(tmp_path / "rows.jsonl", rows))
    with pytest.raises(DataError) as error:
        preflight(args)
    text = str(error.value)
    assert "17 of 30 rows" in text
    assert "no column 'input' in row 4" in text
    assert "empty prompt in rows 11, 12, 13, 14, 15, 16, 17, 18, 19, 20 and 5 more" in text
    assert "'metadata' is no mapping in row 30" in text


def test_the_nearest_column_is_suggested(make_args: Make, tmp_path: Path) -> None:
    args = make_args("--prompt-data", write(tmp_path / "rows.jsonl", [{"inputs": "x", "label": "1"}]))
    with pytest.raises(DataError) as error:
        preflight(args)
    assert error.value.hint == "columns present: inputs, label; set --input-key inputs"


def test_messages_need_a_chat_template(make_args: Make, tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"input": [{"role": "user", "content": "x"}], "label": "1"}])
    with pytest.raises(DataError, match="messages instead of a text in row 1") as error:
        preflight(make_args("--prompt-data", path))
    assert error.value.hint == "add --apply-chat-template"
    assert preflight(make_args("--prompt-data", path, "--apply-chat-template")) == 1


def test_evaluation_files_are_checked_too(make_args: Make, tmp_path: Path) -> None:
    path = write(tmp_path / "eval.jsonl", [{"input": "x"}])
    with pytest.raises(DataError, match=r"eval\.jsonl: 1 of 1 rows"):
        preflight(make_args("--eval-prompt-data", "dev", path))


def test_steps_come_from_epochs_or_are_refused(make_args: Make) -> None:
    args = make_args("--num-epoch", "2")
    args.num_rollout = None
    assert steps_of(args, prompts=40) == 20
    with pytest.raises(DataError, match="do not fill one step"):
        steps_of(args, prompts=1)


def test_long_prompts_are_left_out_in_order_and_all_too_long_is_an_error(
    make_args: Make, tmp_path: Path, tokenizer: Any
) -> None:
    path = write(tmp_path / "rows.jsonl", [{"input": "x" * n, "label": "1"} for n in (3, 9, 2, 8, 1)])
    args = make_args("--prompt-data", path)
    prompts = load_prompts(path, columns_of(args), tokenizer, max_tokens=3)
    assert [len(prompt.tokens) for prompt in prompts] == [3, 2, 1]
    assert [prompt.row for prompt in prompts] == [1, 3, 5]
    with pytest.raises(DataError, match="the shortest has 1 tokens"):
        load_prompts(path, columns_of(args), tokenizer, max_tokens=0)


def test_the_fingerprint_is_of_contents_not_of_the_file(make_args: Make, tmp_path: Path, tokenizer: Any) -> None:
    rows = [{"input": f"p{i}", "label": str(i)} for i in range(5)]
    args = make_args()
    one = load_prompts(write(tmp_path / "a.jsonl", rows), columns_of(args), tokenizer)
    same = load_prompts(
        write(tmp_path / "b.jsonl", [dict(reversed(row.items())) for row in rows]), columns_of(args), tokenizer
    )
    other = load_prompts(write(tmp_path / "c.jsonl", rows[::-1]), columns_of(args), tokenizer)
    assert fingerprint(one) == fingerprint(same)
    assert fingerprint(one) != fingerprint(other)
