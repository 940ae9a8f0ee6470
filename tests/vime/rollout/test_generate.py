"""The rollout step: every group that is drawn has an end, and none of them is silence."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vime.errors import EngineError, EngineTimeout, HookError
from vime.rollout.generate import generate_rollout
from vime.rollout.pool import pool
from vime.rollout.types import RolloutFnTrainOutput, flatten
from vime.sample import Status


@pytest.fixture
def hooks() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("user_hooks", Path(__file__).with_name("user_hooks.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["user_hooks"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["user_hooks"]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_RETRY_WAIT", 0.0)


def roll(args: Namespace, rollout_id: int, source: Any) -> RolloutFnTrainOutput:
    output = generate_rollout(args, rollout_id, source)
    assert isinstance(output, RolloutFnTrainOutput)
    return output


def labels(output: RolloutFnTrainOutput) -> list[str]:
    return [group[0].label for group in output.samples]


@pytest.mark.parametrize("shared", ["--rollout-group-requests", "--no-rollout-group-requests"])
def test_a_step_returns_a_full_scored_batch_in_order(start: Any, engine: Any, shared: str) -> None:
    args, source = start(shared)
    output = roll(args, 0, source)
    assert labels(output) == ["0", "1", "2", "3"]
    assert [sample.index for sample in flatten(output.samples)] == list(range(8))
    for sample in flatten(output.samples):
        assert (sample.status, sample.reward, sample.response) == (Status.COMPLETED, 1.0, sample.label)
        assert sample.tokens[-1] == engine.tokenizer.eos_token_id
        assert sample.rollout_log_probs is not None
        assert len(sample.rollout_log_probs) == sample.response_length == 2
        assert sample.session_id
    assert [params.n for _, params, _ in engine.requests] == (
        [2] * 4 if shared == "--rollout-group-requests" else [1] * 8
    )
    assert source.ledger().line() == "4 prompts, 4 trained once each with 8 samples"
    assert output.metrics["rollout/raw_reward"] == 1.0
    assert output.metrics["perf/rollout_time"] > 0


def test_both_ways_of_asking_give_the_same_samples(start: Any, engine: Any) -> None:
    def strip(output: RolloutFnTrainOutput) -> list[dict[str, Any]]:
        return [
            sample.to_dict() | {"session_id": None, "prefix_cache_info": None, "trace": None}
            for sample in flatten(output.samples)
        ]

    engine.answer = lambda prompt, number: f"{prompt[1:3]}{number}"
    one = strip(roll(*_args_first(start("--rollout-group-requests"))))
    engine.served.clear()
    assert strip(roll(*_args_first(start("--no-rollout-group-requests")))) == one


def _args_first(started: tuple[Namespace, Any]) -> tuple[Namespace, int, Any]:
    return started[0], 0, started[1]


def test_seeds_are_per_sibling_in_deterministic_runs(start: Any, engine: Any) -> None:
    args, source = start("--vllm-enable-deterministic-inference", "--no-rollout-group-requests")
    roll(args, 0, source)
    assert sorted({params.seed for _, params, _ in engine.requests}) == [42, 43]


def test_the_limit_on_requests_holds(start: Any, engine: Any) -> None:
    args, source = start("--vllm-server-concurrency", "3", "--rollout-batch-size", "20", "--no-rollout-group-requests")
    roll(args, 0, source)
    assert engine.most_in_flight == 3
    args, source = start("--vllm-server-concurrency", "5", "--rollout-batch-size", "20")
    engine.most_in_flight = 0
    roll(args, 0, source)
    assert engine.most_in_flight == 4


def test_an_answer_at_its_limit_is_truncated(start: Any, engine: Any) -> None:
    engine.answer = lambda prompt, number: "x" * 20
    args, source = start()
    output = roll(args, 0, source)
    assert {sample.status for sample in flatten(output.samples)} == {Status.TRUNCATED}
    assert {sample.response_length for sample in flatten(output.samples)} == {8}
    assert output.metrics["rollout/truncated_ratio"] == 1.0


def test_the_context_bounds_the_answer(start: Any, engine: Any) -> None:
    engine.answer = lambda prompt, number: "x" * 20
    args, source = start("--rollout-max-context-len", "9")
    assert {len(sample.tokens) for sample in flatten(roll(args, 0, source).samples)} == {9}


def test_a_slow_request_is_tried_again_and_the_run_goes_on(start: Any, engine: Any) -> None:
    """Public report slime#1562: one slow generation raised TimeoutError and killed the training at 62 %."""
    tries: list[str] = []

    async def gate(prompt: str) -> None:
        tries.append(prompt)
        if prompt == "p02=" and tries.count(prompt) == 1:
            raise EngineTimeout("no answer within 1800 s")

    engine.gate = gate
    args, source = start()
    output = roll(args, 0, source)
    assert labels(output) == ["0", "1", "2", "3"]
    assert output.metrics["rollout/retries/timeout"] == 1
    assert tries.count("p02=") == 2


def test_a_group_that_never_answers_is_dropped_counted_and_replaced(start: Any, engine: Any) -> None:
    """Public report NeMo-RL#3238: one stuck sibling made the step wait for ever."""

    async def gate(prompt: str) -> None:
        if prompt == "p02=":
            raise EngineTimeout("no answer")

    engine.gate = gate
    args, source = start("--rollout-request-retries", "1")
    output = roll(args, 0, source)
    assert labels(output) == ["0", "1", "3", "4"]
    assert output.metrics["rollout/dropped_groups"] == 1
    assert source.ledger().fates == {"trained": 4, "failed:timeout": 1}


def test_a_dead_engine_ends_the_step_with_the_cause(start: Any, engine: Any) -> None:
    """Public report trl#6628: the trainer polled an empty buffer for ever after the engine had died."""

    async def gate(prompt: str) -> None:
        raise EngineError("connection refused", where="http://127.0.0.1:1")

    engine.gate = gate
    args, source = start()
    with pytest.raises(
        EngineError, match=r"8 samples of rollout 0 failed of 8 \(--max-failed-sample-ratio 0\.5\)"
    ) as error:
        roll(args, 0, source)
    assert "connection refused" in str(error.value.hint)


def test_over_sampling_returns_what_it_does_not_need_as_fresh_prompts(start: Any, engine: Any) -> None:
    """Public report slime PR 2238: completed groups were thrown away. Prompts of unfinished and surplus groups are dealt again."""
    engine.hold = lambda prompt: prompt in ("p01=", "p05=")
    args, source = start("--over-sampling-batch-size", "8")
    first = roll(args, 0, source)
    assert labels(first) == ["0", "2", "3", "4"]
    assert sum(len(sessions or ()) for sessions in engine.aborts) >= 2
    engine.hold = lambda prompt: False
    engine.version = "1"
    second = roll(args, 1, source)
    assert sorted(labels(second), key=int) == ["1", "5", "6", "7"]
    assert {sample.weight_versions[0] for sample in flatten(second.samples)} == {"1"}
    assert source.ledger().fates == {"trained": 8}


def test_partial_rollout_continues_the_prefix_with_the_rest_of_the_budget(start: Any, engine: Any) -> None:
    """Public report slime PR 2092: prefixes were continued even when partial rollout was off; here the flag decides."""
    engine.hold = lambda prompt: prompt == "p01="
    args, source = start("--over-sampling-batch-size", "8", "--partial-rollout", "--mask-offpolicy-in-partial-rollout")
    roll(args, 0, source)
    engine.hold = lambda prompt: False
    engine.version = "1"
    engine.answer = lambda prompt, number: "z" * 20
    args.over_sampling_batch_size = 4  # what was kept, and nothing fresh beside it
    second = roll(args, 1, source)
    resumed = next(group for group in second.samples if group[0].label == "1")
    for sample in resumed:
        assert sample.response == "ab" + "z" * 6
        assert sample.response_length == 8
        assert sample.loss_mask == [0, 0, 1, 1, 1, 1, 1, 1]
        assert sample.weight_versions == ["0", "1"]
        assert sample.start_rollout_id == 0
        assert sample.oldest_version() == 0


def test_samples_older_than_the_lag_begin_anew(start: Any, engine: Any) -> None:
    """Public report slime#1800: no bound on staleness."""
    from vime.rollout import context as rollout_context

    engine.hold = lambda prompt: prompt == "p01="
    args, source = start("--over-sampling-batch-size", "8", "--partial-rollout", "--max-policy-lag", "1")
    roll(args, 0, source)
    engine.hold = lambda prompt: False
    engine.version = "2"
    rollout_context.current().serving_version = 2
    second = roll(args, 1, source)
    assert {sample.weight_versions[0] for sample in flatten(second.samples)} == {"2"}
    assert second.metrics["rollout/reset_too_old"] > 0
    assert second.metrics["rollout/staleness/max"] == 0


def test_filtered_groups_are_replaced_and_accounted(start: Any, hooks: Any) -> None:
    args, source = start(
        "--dynamic-sampling-filter-path",
        "user_hooks.keep_even",
        "--rollout-all-samples-process-path",
        "user_hooks.note_all",
    )
    output = roll(args, 0, source)
    assert labels(output) == ["0", "2", "4", "6"]
    assert output.metrics["rollout/dynamic_filter/drop_odd"] == 3
    assert output.metrics["rollout/dynamic_filter/dropped_ratio"] == 3 / 7
    assert source.ledger().fates == {"trained": 4, "filter:odd": 3}
    assert sorted(hooks.seen[0], key=int) == [str(i) for i in range(7)]


def test_a_fallback_filter_keeps_rather_than_draw_again(start: Any, engine: Any, hooks: Any) -> None:
    args, source = start("--dynamic-sampling-filter-path", "user_hooks.keep_none_but_if_needed")
    output = roll(args, 0, source)
    assert len(output.samples) == 4
    assert len(engine.requests) == 4


def test_equal_rewards_are_filtered_by_the_stock_filter(start: Any, engine: Any) -> None:
    engine.answer = lambda prompt, number: "x" if number == 0 and int(prompt[1:3]) % 2 else str(int(prompt[1:3]))
    args, source = start("--dynamic-sampling-filter-path", "vime.rollout.filters.check_reward_nonzero_std")
    output = roll(args, 0, source)
    assert labels(output) == ["1", "3", "5", "7"]
    assert output.metrics["rollout/dynamic_filter/drop_zero_std_1"] == 4


def test_a_multi_turn_function_of_a_user(start: Any, hooks: Any) -> None:
    args, source = start("--custom-generate-function-path", "user_hooks.generate_two_turns")
    for sample in flatten(roll(args, 0, source).samples):
        assert sample.loss_mask == [1, 1, 0, 0]
        assert sample.response == "two turns"


def test_fan_out_siblings_share_a_rollout(start: Any, hooks: Any) -> None:
    args, source = start("--custom-generate-function-path", "user_hooks.generate_fan_out", "--rm-type", "random")
    output = roll(args, 0, source)
    assert [[sample.rollout_id for sample in group] for group in output.samples][:2] == [[0, 0, 1, 1], [2, 2, 3, 3]]
    assert [sample.response_length for sample in output.samples[0]] == [1, 2, 1, 2]


@pytest.mark.parametrize("function", ["generate_abort_first", "generate_timeout_first"])
def test_a_users_aborted_sample_never_reaches_training(start: Any, hooks: Any, function: str) -> None:
    """Public report slime#200: an aborted sample had reward None and crashed the tensors. What was half written is not kept."""
    args, source = start("--custom-generate-function-path", f"user_hooks.{function}", "--rm-type", "random")
    output = roll(args, 0, source)
    assert {sample.status for sample in flatten(output.samples)} == {Status.COMPLETED}
    assert {sample.response_length for sample in flatten(output.samples)} == {1}
    assert all(hooks.seen.count(index) == 2 for index in range(8))


def test_a_crash_in_a_users_function_surfaces(start: Any, hooks: Any) -> None:
    args, source = start("--custom-generate-function-path", "user_hooks.generate_crash")
    with pytest.raises(ZeroDivisionError, match="a bug of the user's"):
        roll(args, 0, source)


def test_failed_rewards_mark_their_sample_and_keep_the_mean(start: Any, hooks: Any) -> None:
    args, source = start(
        *("--custom-rm-path", "user_hooks.reward_by_label"),
        *("--max-failed-sample-ratio", "1", "--rollout-batch-size", "8"),
    )
    output = roll(args, 0, source)
    assert labels(output) == [str(i) for i in range(5, 13)]
    failed = {name: count for name, count in output.metrics.items() if name.startswith("rollout/failed/")}
    assert failed.keys() == {f"rollout/failed/reward_{why}" for why in ("error", "none", "not_finite", "not_a_number")}
    assert source.ledger().fates["failed:reward_error"] == 2


def test_mostly_failing_rewards_end_the_step(start: Any, hooks: Any) -> None:
    args, source = start("--custom-rm-path", "user_hooks.reward_broken")
    with pytest.raises(EngineError, match="reward_error"):
        roll(args, 0, source)


def test_hooks_see_samples_before_and_after(start: Any, hooks: Any) -> None:
    args, source = start(
        *("--rollout-sample-hook-path", "user_hooks.shout", "--rollout-sample-hook-path", "user_hooks.shout_later"),
        *("--rollout-sample-filter-path", "user_hooks.mark_first_removed"),
    )
    output = roll(args, 0, source)
    assert output.samples[0][1].metadata["hook"] == (0, False)
    assert output.samples[0][0].trained_mask == [0, 0]
    assert output.samples[0][1].trained_mask == [1, 1]


def test_group_rewards_come_in_one_call_and_are_counted(start: Any, hooks: Any) -> None:
    args, source = start("--group-rm", "--custom-rm-path", "user_hooks.reward_group")
    assert {sample.reward for sample in flatten(roll(args, 0, source).samples)} == {2.0}
    args, source = start("--group-rm", "--custom-rm-path", "user_hooks.reward_group_short")
    with pytest.raises(HookError, match="returned 1 rewards for 2 samples"):
        roll(args, 0, source)


def test_dict_rewards_go_through_the_key_everywhere(start: Any, hooks: Any) -> None:
    """Public report slime#275."""
    args, source = start(
        *("--custom-rm-path", "user_hooks.reward_dict", "--reward-key", "score", "--log-reward-category", "pred"),
        *("--dynamic-sampling-filter-path", "vime.rollout.filters.check_reward_nonzero_std_with_fallback"),
    )
    metrics = roll(args, 0, source).metrics
    assert metrics["rollout/raw_reward"] == pytest.approx(-0.5)
    assert metrics["rollout/error_cat/x"] == 1.0


def test_rewards_that_teach_nothing_are_said(start: Any, engine: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Public report slime#1527: reward, loss and evaluation were 0, and nothing said why."""
    engine.answer = lambda prompt, number: "?"
    args, source = start()
    with caplog.at_level("WARNING"):
        roll(args, 0, source)
    assert "all 8 rewards of this step are 0.0" in caplog.text
    assert "rm reverse_word, prompt 'p00=', response '?', label '0'" in caplog.text


def test_an_abort_reaches_only_the_requests_of_the_step(start: Any, engine: Any) -> None:
    """Public report vime PR 410: a streaming abort ended everybody's requests."""
    engine.hold = lambda prompt: prompt == "p07="
    args, source = start("--over-sampling-batch-size", "8")
    roll(args, 0, source)
    held = [session for prompt, _, session in engine.requests if prompt == "p07="]
    assert all(sessions is not None for sessions in engine.aborts)
    assert {session for sessions in engine.aborts for session in sessions} >= set(held)


def test_a_request_that_ignores_its_abort_is_an_error_with_names(
    start: Any, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Public report verl-omni#433: every wait has a deadline."""
    monkeypatch.setattr(pool, "_SWEEP", 0.01)
    monkeypatch.setattr(pool, "_CLOSE_DEADLINE", 0.05)
    engine.hold = lambda prompt: prompt == "p07="

    async def deaf(session_ids: Any) -> None:
        await asyncio.sleep(0)

    engine.abort = deaf
    args, source = start("--over-sampling-batch-size", "8")
    with pytest.raises(EngineError, match="groups 7"):
        roll(args, 0, source)
