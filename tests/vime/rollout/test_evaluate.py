"""Evaluation with parameters of its own."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vime.errors import EngineTimeout, UsageError
from vime.rollout.eval_config import eval_datasets
from vime.rollout.generate import generate_rollout
from vime.rollout.metrics import pass_at, repeats
from vime.rollout.types import RolloutFnEvalOutput

Make = Callable[..., Namespace]

CONFIG = """
eval:
  defaults: {n_samples_per_eval_prompt: 2, temperature: 0.5, max_response_len: 4}
  datasets:
    - {name: dev, path: DEV, temperature: 0.0, metadata_overrides: {split: dev}}
    - {name: test, path: "DEV@[0:1]", rm_type: f1, top_p: 0.9, stop: [x]}
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    rows = tmp_path / "dev.jsonl"
    rows.write_text("".join(json.dumps({"input": f"p{i:02}=", "label": str(i)}) + "\n" for i in range(3)))
    path = tmp_path / "eval.yaml"
    path.write_text(CONFIG.replace("DEV", str(rows)))
    return str(path)


def test_precedence_is_dataset_defaults_options_rollout(make_args: Make, config: str) -> None:
    args = make_args("--eval-config", config, "--eval-top-p", "0.8", "--rollout-stop", "y", "--eval-temperature", "0.9")
    dev, test = eval_datasets(args)
    assert (dev.temperature, test.temperature) == (0.0, 0.5)
    assert (dev.top_p, test.top_p) == (0.8, 0.9)
    assert dev.stop == ["y"]
    assert (dev.max_response_len, test.n_samples_per_eval_prompt) == (4, 2)
    assert (dev.rm_type, test.rm_type, test.stop) == ("reverse_word", "f1", ["x"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("temperature: 0.5", "temprature: 0.5"), "defaults has the unknown key 'temprature'"),
        (("name: test", "name: dev"), "two datasets are called dev"),
        (('name: test, path: "DEV@[0:1]", ', "name: test, "), "'test' has no path"),
        (("datasets:", "sets:"), "no evaluation datasets"),
    ],
)
def test_a_wrong_file_is_refused(make_args: Make, tmp_path: Path, change: tuple[str, str], said: str) -> None:
    path = tmp_path / "eval.yaml"
    path.write_text(CONFIG.replace(*change))
    with pytest.raises(UsageError, match=said):
        eval_datasets(make_args("--eval-config", str(path)))


def test_each_dataset_is_asked_and_scored_its_own_way(start: Any, engine: Any, config: str) -> None:
    args, source = start("--eval-config", config)
    output = generate_rollout(args, 5, source, evaluation=True)
    assert isinstance(output, RolloutFnEvalOutput)
    assert output.metrics["eval/dev"] == 1.0
    assert output.metrics["eval/test-pass@2"] == 1.0
    assert len(output.data["dev"]["rewards"]) == len(output.data["dev"]["samples"]) == 6
    assert {sample.metadata["split"] for sample in output.data["dev"]["samples"]} == {"dev"}
    assert {(params.temperature, params.n, params.max_tokens) for _, params, _ in engine.requests} == {
        (0.0, 2, 4),
        (0.5, 2, 4),
    }
    assert source.ledger().issued == 0


def test_a_type_named_by_a_dataset_beats_the_function_of_the_run(make_args: Make, config: str) -> None:
    dev, test = eval_datasets(make_args("--eval-config", config, "--custom-rm-path", "m.f"))
    assert (dev.custom_rm_path, test.custom_rm_path) == ("m.f", None)


def test_a_slow_answer_scores_zero_and_is_counted(start: Any, engine: Any, config: str) -> None:
    async def gate(prompt: str) -> None:
        if prompt == "p01=":
            raise EngineTimeout("slow")

    engine.gate = gate
    args, source = start("--eval-config", config)
    output = generate_rollout(args, 0, source, evaluation=True)
    assert output.metrics["eval/dev"] == pytest.approx(2 / 3)
    assert output.metrics["eval/dev-failed_ratio"] == pytest.approx(1 / 3)


def test_an_answer_that_never_comes_ends_at_the_datasets_deadline(
    start: Any, engine: Any, config: str, tmp_path: Path
) -> None:
    Path(config).write_text(
        Path(config).read_text().replace("temperature: 0.5,", "temperature: 0.5, eval_task_timeout: 0.05,")
    )
    engine.hold = lambda prompt: prompt == "p02="
    args, source = start("--eval-config", config)
    assert generate_rollout(args, 0, source, evaluation=True).metrics["eval/dev-failed_ratio"] == pytest.approx(1 / 3)


def test_pass_at_k_is_the_unbiased_estimate() -> None:
    """Against the mean over all subsets."""
    from itertools import combinations

    rows = [[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]]
    for k, value in ((1, pass_at(rows)["pass@1"]), (2, pass_at(rows)["pass@2"]), (4, pass_at(rows)["pass@4"])):
        subsets = [[any(chosen) for chosen in combinations(row, k)] for row in rows]
        assert value == pytest.approx(sum(sum(row) / len(row) for row in subsets) / 2)


def test_repetition_is_found_at_the_end_only() -> None:
    assert repeats("well " + "ha" * 10)
    assert not repeats("ha" * 10 + " well")
    assert not repeats("")
