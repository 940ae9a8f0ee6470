"""The worked examples of hooks that run in the rollout manager, at work."""

from __future__ import annotations

from typing import Any

import pytest

from examples.hooks import rollout as example
from vime.cluster.rollout import RolloutManager
from vime.hooks import load_hook
from vime.rollout.generate import generate_rollout
from vime.sample import Status


def _step(start: Any, *flags: str, rollout_function: Any = generate_rollout) -> Any:
    args, source = start(*flags)
    return args, source, rollout_function(args, 0, source)


def test_only_the_best_and_the_worst_of_a_group_are_trained(start: Any, engine: Any) -> None:
    engine.answer = lambda prompt, number: "x" * number
    _args, _source, output = _step(
        start,
        "--custom-rm-path",
        "user_rewards.by_length",
        "--n-samples-per-prompt",
        "4",
        rollout_function=example.best_and_worst,
    )
    for group in output.samples:
        assert len(group) == 4
        assert sorted(sample.response_length for sample in group if not sample.remove_sample) == [1, 4]


@pytest.fixture(autouse=True)
def _rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    from types import ModuleType

    async def by_length(args: Any, sample: Any) -> float:
        return float(sample.response_length)

    module = ModuleType("user_rewards")
    module.by_length = by_length  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "user_rewards", module)


def test_the_evaluation_without_engines_uses_no_prompts_up(start: Any, engine: Any) -> None:
    args, source = start()
    output = example.labels_only(args, 0, source)
    assert output.data["labels"]["rewards"] == [1.0] * 4
    assert not engine.requests
    assert [group[0].label for group in source.get_samples(4)] == ["0", "1", "2", "3"]


def test_the_curriculum_orders_each_batch(start: Any, tmp_path: Any) -> None:
    import json

    path = tmp_path / "uneven.jsonl"
    path.write_text("".join(json.dumps({"input": "x" * n, "label": str(n)}) + "\n" for n in (5, 2, 9, 1)))
    args, _ = start("--prompt-data", str(path))
    assert [group[0].label for group in example.EasyFirst(args).get_samples(4)] == ["1", "2", "5", "9"]


def test_what_was_put_back_last_is_dealt_first(start: Any) -> None:
    _, source = start("--buffer-filter-path", "examples.hooks.rollout.newest_first")
    source.add_samples(source.get_samples(3))
    assert [group[0].label for group in source.get_samples(2)] == ["2", "1"]


def test_solved_prompts_are_replaced_and_counted(start: Any, engine: Any) -> None:
    engine.answer = lambda prompt, number: "0" if prompt in ("p00=", "p02=") else "no"
    example.dealt.clear()
    _, _, output = _step(
        start,
        *("--custom-rm-path", "examples.hooks.rewards.label_inside"),
        *("--dynamic-sampling-filter-path", "examples.hooks.rollout.not_too_easy"),
        *("--rollout-all-samples-process-path", "examples.hooks.rollout.count_prompts"),
    )
    assert [group[0].label for group in output.samples] == ["1", "2", "3", "4"]
    assert "p00=" in example.dealt


def test_truncated_answers_are_not_trained(start: Any, engine: Any) -> None:
    engine.answer = lambda prompt, number: "x" * (20 if number else 2)
    _, _, output = _step(start, "--rollout-sample-filter-path", "examples.hooks.rollout.drop_truncated")
    for sample in (sample for group in output.samples for sample in group):
        assert sample.remove_sample == (sample.status is Status.TRUNCATED)
    assert {sample.remove_sample for group in output.samples for sample in group} == {True, False}


def test_thinking_twice_masks_the_words_between(start: Any, engine: Any) -> None:
    engine.answer = lambda prompt, number: " 7 " if prompt.endswith("Wait.") else "a"
    _args, _, output = _step(
        start,
        *("--custom-generate-function-path", "examples.hooks.answers.think_twice", "--rollout-max-response-len", "30"),
        *("--rollout-sample-hook-path", "examples.hooks.answers.strip_response"),
    )
    sample = output.samples[0][0]
    assert sample.status is Status.COMPLETED
    assert sample.loss_mask == [1, 1] + [0] * len(" Wait.") + [1] * 4
    assert sample.response.endswith("Wait. 7")


def test_the_majority_is_right(start: Any, engine: Any) -> None:
    engine.answer = lambda prompt, number: ["a", "b", "a", "c"][number % 4]
    _, _, output = _step(
        start,
        *("--custom-rm-path", "examples.hooks.rewards.agrees_with_most", "--group-rm", "--n-samples-per-prompt", "4"),
    )
    assert [sample.reward for sample in output.samples[0]] == [1.0, 0.0, 1.0, 0.0]


def test_logging_hooks_add_their_metrics_or_leave_ours_out(
    start: Any, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    args, source = start(
        *("--custom-rollout-log-function-path", "examples.hooks.logs.count_digits"),
        *("--custom-eval-rollout-log-function-path", "examples.hooks.logs.best_answer"),
        *("--trace-samples", "0"),
    )
    manager = RolloutManager.__new__(RolloutManager)
    manager.args, manager.source = args, source
    manager._rollout = generate_rollout
    manager._evaluate = load_hook("eval_function_path", "examples.hooks.rollout.labels_only")
    _, (metrics, _) = manager.generate(0)
    assert metrics["rollout/digits_per_sample"] == 1.0
    assert "rollout/raw_reward" in metrics
    found, _ = manager.evaluate(0)
    assert found["eval/labels/best"] == 1.0
    assert found["datasets"] == ["labels"]
    import examples.hooks.logs as logs

    monkeypatch.setattr(logs, "count_digits", lambda rollout_id, args, samples, extra_metrics, rollout_time: True)
    monkeypatch.setattr(logs, "best_answer", lambda rollout_id, args, data, extra_metrics: True)
    _, (metrics, _) = manager.generate(1)
    assert set(metrics) == {"perf/rollout_time", "perf/rollout_tokens_per_sec"}
    assert manager.evaluate(1) == ({"datasets": []}, [])
