"""The table of public troubles: every test that it names exists, and nothing is left without an answer."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TROUBLES = tomllib.loads((ROOT / "docs" / "_shared" / "troubles.toml").read_text(encoding="utf-8"))["trouble"]


def test_all_of_them_are_there_once() -> None:
    assert [one["number"] for one in TROUBLES] == list(range(1, 43))


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda one: str(one["number"]))
def test_each_has_a_test_that_exists_or_a_reason(trouble: dict) -> None:
    assert trouble["tests"] or (trouble["note_en"] and trouble["note_zh"])
    assert bool(trouble["note_en"]) == bool(trouble["note_zh"])
    for test in trouble["tests"]:
        path, _, name = test.partition("::")
        names = {
            node.name for node in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(node, ast.FunctionDef)
        }
        assert name in names, test
