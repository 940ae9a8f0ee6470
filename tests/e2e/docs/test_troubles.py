"""The tables of public troubles and of algorithms: every test that they name exists, and nothing is left without an answer."""

from __future__ import annotations

import ast
import json
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
    exist(trouble["tests"])


def exist(tests: list[str]) -> None:
    for test in tests:
        path, _, name = test.partition("::")
        names = {
            node.name for node in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(node, ast.FunctionDef)
        }
        assert name in names, test


def test_every_formula_has_a_test_a_reference_and_figures_in_both_languages() -> None:
    known = tomllib.loads((ROOT / "docs" / "_shared" / "algorithms.toml").read_text(encoding="utf-8"))
    measured = json.loads((ROOT / "benchmarks" / "results" / "algorithms.json").read_text(encoding="utf-8"))
    assert [one["id"] for one in known["algorithm"]] == [f"C{number}" for number in range(1, 15)]
    for one in known["algorithm"]:
        assert all(one[key] for key in ("en", "zh", "against_en", "against_zh", "tests"))
        exist(one["tests"])
        assert measured[one["id"]].keys() <= known["figures"].keys()
    # Formulas in double precision; what a whole trainer computes in single precision.
    exact = [value for number in range(2, 9) for value in measured[f"C{number}"].values()]
    assert max(exact) < 1e-12
    assert all(value < 1e-4 for found in measured.values() for value in found.values())
