"""Whole runs of the pool in virtual time, over random schedules: nothing too old, nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
import copy
import itertools
import random
import tempfile
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.vime.rollout.pool import virtual
from vime.errors import DataError, EngineError, EngineTimeout
from vime.rollout.context import RolloutContext
from vime.rollout.pool.pool import Pool
from vime.rollout.pool.schedules import NAMES, schedule_of
from vime.rollout.types import flatten
from vime.sample import Sample, Status

PROMPTS = 500
#: Arguments of each schedule, resolved once: it takes a while.
RESOLVED: dict[str, Namespace] = {}


def keep_two_of_three(args: Namespace, samples: list[Sample]) -> bool:
    return bool((samples[0].group_index or 0) % 3)


@pytest.fixture
def configure(make_args: Callable[..., Namespace]) -> Callable[..., Namespace]:
    """A variant of a schedule's arguments."""
    for name in NAMES if not RESOLVED else ():
        RESOLVED[name] = make_args(
            *("--rollout-schedule", name, "--rm-type", "random", "--no-rollout-group-requests"),
            *("--rollout-max-response-len", "64", "--rollout-shuffle"),
        )

    def make(name: str, **more: Any) -> Namespace:
        args = copy.copy(RESOLVED[name])
        size = more.get("rollout_batch_size", args.rollout_batch_size)
        vars(args).update({"over_sampling_batch_size": size} | more)
        return args

    return make


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    name = draw(st.sampled_from(NAMES))
    return {
        "name": name,
        "max_policy_lag": {"synchronous": draw(st.sampled_from([None, 0, 2])), "one-step-ahead": 1}.get(
            name, draw(st.integers(1, 4))
        ),
        "partial_rollout": name != "one-step-ahead" and draw(st.booleans()),
        "mask_offpolicy_in_partial_rollout": draw(st.booleans()),
        "flush_cache_interval": draw(st.integers(0, 4)) if name == "in-flight" else 1,
        "rollout_batch_size": draw(st.integers(1, 6)),
        "n_samples_per_prompt": draw(st.integers(1, 3)),
        "vllm_server_concurrency": draw(st.integers(1, 24)),
        "filtered": draw(st.booleans()),
        "failures": draw(st.sampled_from([0.0, 0.05])),
        "longest": draw(st.sampled_from([3, 20, 60])),
        "train_seconds": draw(st.sampled_from([0, 3, 30])),
        "seed": draw(st.integers(0, 10**6)),
    }


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cases())
def test_no_schedule_exceeds_its_bound_or_loses_or_repeats_a_group(
    configure: Callable[..., Namespace], tokenizer: Any, case: dict[str, Any]
) -> None:
    """Public reports slime#1800, PR 2238, PR 2092, NeMo-RL#3599."""
    steps, case = 7, dict(case)
    name, seed = case.pop("name"), case.pop("seed")
    filtered, failures, longest, seconds = (
        case.pop(key) for key in ("filtered", "failures", "longest", "train_seconds")
    )
    if filtered:
        case["dynamic_sampling_filter_path"] = f"{__name__}.keep_two_of_three"
    args = configure(name, **case, num_rollout=steps, max_failed_sample_ratio=1.0)
    rng = random.Random(seed)
    engine = virtual.Engine(virtual.ragged(rng, longest), fails=virtual.failing(rng, failures))
    source = virtual.source_of(args, PROMPTS)
    store = virtual.MemoryStore(args, source)
    record, pool = virtual.run_virtually(
        virtual.drive(args, tokenizer, engine, store, range(steps), lambda: rng.random() * seconds)
    )

    trained: Counter[int] = Counter()
    for step, batch in enumerate(record.batches):
        assert len(batch.tasks) == args.rollout_batch_size
        for sample in flatten(batch.groups):
            assert sample.status in (Status.COMPLETED, Status.TRUNCATED)
            assert sample.index is not None
            trained[sample.index] += 1
            oldest = sample.oldest_version()
            assert oldest is not None
            if args.max_policy_lag is not None:
                assert step + 1 - oldest <= args.max_policy_lag, sample
            # The engine writes its version into the tokens: the spans must say the same.
            told = [int(span.version) for span in sample.version_spans for _ in range(span.start, span.end)]
            assert told == sample.tokens[sample.prompt_length :]
            assert told == sorted(told)
            if len(set(told)) > 1:
                assert args.partial_rollout or name == "in-flight"
    assert set(trained.values()) == {1}

    ledger = source.ledger()
    assert ledger.fates["trained"] == steps * args.rollout_batch_size
    counts = store.counts()
    assert ledger.issued == sum(ledger.fates.values()) + counts.ready + counts.leased + len(source.buffer)
    assert record.most_in_flight <= pool.limits.concurrency
    if not filtered and not failures and name != "synchronous":
        assert ledger.issued == steps * args.rollout_batch_size  # the last steps draw nothing that nobody trains
        assert not any(report.counts["rollout/reset_too_old"] for report in record.reports)


def run(args: Namespace, tokenizer: Any, longest: int = 60, seconds: float = 25.0, steps: int = 12) -> virtual.Record:
    rng = random.Random(1)
    engine = virtual.Engine(virtual.ragged(rng, longest))
    args.num_rollout = steps
    record, _ = virtual.run_virtually(
        virtual.drive(args, tokenizer, engine, virtual.store_of(args, PROMPTS), range(steps), lambda: seconds)
    )
    return record


def test_running_ahead_takes_less_time_where_lengths_are_ragged(
    configure: Callable[..., Namespace], tokenizer: Any
) -> None:
    took = {name: run(configure(name, partial_rollout=name == "fully-async"), tokenizer).seconds for name in NAMES}
    assert took["one-step-ahead"] < 0.95 * took["synchronous"]
    assert took["fully-async"] < 0.75 * took["synchronous"]
    assert took["in-flight"] < 0.75 * took["synchronous"]


def test_an_answer_longer_than_a_step_is_finished_all_the_same(
    configure: Callable[..., Namespace], tokenizer: Any
) -> None:
    """Public report NeMo-RL#3599: the long prompts were the ones that never got trained."""
    for name, partial in (("fully-async", False), ("fully-async", True), ("in-flight", False)):
        args = configure(name, partial_rollout=partial, max_policy_lag=4, num_rollout=12)
        lengths = itertools.cycle([60] + [3] * 20)
        engine = virtual.Engine(lambda lengths=lengths: next(lengths))
        record, _ = virtual.run_virtually(
            virtual.drive(args, tokenizer, engine, virtual.store_of(args, PROMPTS), range(12), lambda: 5.0)
        )
        answers = [sample.response_length for batch in record.batches for sample in flatten(batch.groups)]
        assert (answers.count(60), answers.count(3)) == (5, len(answers) - 5)


def test_only_what_the_schedule_says_mixes_versions(configure: Callable[..., Namespace], tokenizer: Any) -> None:
    def mixed(name: str, **more: Any) -> int:
        batches = run(configure(name, **more), tokenizer, seconds=5.0).batches
        return sum(len(sample.weight_versions) > 1 for batch in batches for sample in flatten(batch.groups))

    assert mixed("synchronous") == mixed("one-step-ahead") == mixed("fully-async") == 0
    assert mixed("fully-async", partial_rollout=True) > 0
    assert mixed("in-flight", flush_cache_interval=0) > 0


def test_what_the_mask_flag_excludes_is_the_older_prefix(configure: Callable[..., Namespace], tokenizer: Any) -> None:
    """Public report slime#1440: mask and response came apart in fully async runs with partial rollouts."""
    args = configure("fully-async", partial_rollout=True, mask_offpolicy_in_partial_rollout=True)
    resumed = [
        sample
        for batch in run(args, tokenizer, seconds=5.0).batches
        for sample in flatten(batch.groups)
        if len(sample.weight_versions) > 1
    ]
    assert resumed
    for sample in resumed:
        last = sample.version_spans[-1]
        assert sample.loss_mask == [0] * last.start + [1] * (last.end - last.start)


@pytest.mark.parametrize("why", ["rollout_data_transport", "mask_offpolicy_in_partial_rollout", None])
def test_an_answer_leaves_its_engine_at_an_update_only_where_it_must(
    configure: Callable[..., Namespace], tokenizer: Any, why: str | None
) -> None:
    """What stays is sent once, whatever number of updates it lives through."""
    more = {} if why is None else {why: "straw" if why == "rollout_data_transport" else True}
    args = configure("fully-async", partial_rollout=True, max_policy_lag=4, **more)
    engine = virtual.Engine(lambda: 30)
    record = outcome(args, tokenizer, engine, virtual.source_of(args, PROMPTS), steps=6)
    assert sum(len(s.weight_versions) > 1 for batch in record.batches for s in flatten(batch.groups)) > 0
    interrupted = sum(report.counts["rollout/interrupted"] for report in record.reports)
    assert (interrupted > 0) == (why is not None)
    if why is None:
        assert engine.requests == len(engine.lengths)


def test_a_flush_ends_answers_that_need_the_routes_of_what_they_have(configure: Callable[..., Namespace]) -> None:
    args = configure("in-flight", partial_rollout=True, use_rollout_routing_replay=True)
    assert [schedule_of(args).interruption(flushes).value for flushes in (False, True)] == ["keep", "abort"]


def test_cached_prefixes_are_shared_by_version_where_updates_keep_the_cache(
    configure: Callable[..., Namespace], tokenizer: Any
) -> None:
    """Public reports NeMo-RL#4018, prime-rl#1650: a prefix cache outlived its weights."""
    salts = {}
    for name in ("in-flight", "fully-async"):
        args = configure(name)
        args.num_rollout = 8
        engine = virtual.Engine(lambda: 3)
        virtual.run_virtually(
            virtual.drive(args, tokenizer, engine, virtual.store_of(args, PROMPTS), range(8), lambda: 2.0)
        )
        salts[name] = engine.salts
    assert salts["fully-async"] == {None}
    assert len(salts["in-flight"]) > 2
    assert salts["in-flight"] <= set("12345678")


def outcome(args: Namespace, tokenizer: Any, engine: virtual.Engine, source: Any, steps: int = 4) -> virtual.Record:
    args.num_rollout = steps
    store = virtual.MemoryStore(args, source)
    return virtual.run_virtually(virtual.drive(args, tokenizer, engine, store, range(steps), lambda: 2.0))[0]


def test_a_request_that_fails_around_an_update_is_sent_again(
    configure: Callable[..., Namespace], tokenizer: Any
) -> None:
    """Public report slime#2168: after a weight update of a fully async run, "connection failed" ended it."""
    args = configure("fully-async")
    engine = virtual.Engine(lambda: 3)
    failures = iter([None] * 6 + [EngineError("connection failed")] * 2)
    engine.fails = lambda: next(failures, None)
    source = virtual.source_of(args, PROMPTS)
    record = outcome(args, tokenizer, engine, source)
    assert sum(report.counts["rollout/retries/engine_error"] for report in record.reports) == 1
    assert source.ledger().fates == {"trained": 4 * args.rollout_batch_size}


def test_a_group_that_always_fails_is_dropped_and_counted_while_others_go_on(
    configure: Callable[..., Namespace], tokenizer: Any
) -> None:
    """Public reports slime#1562, NeMo-RL#3238."""
    args = configure("fully-async", rollout_request_retries=0, n_samples_per_prompt=1, max_failed_sample_ratio=0.9)
    engine = virtual.Engine(lambda: 3)
    engine.fails = lambda: EngineTimeout("no answer") if engine.requests in (2, 13, 14) else None
    source = virtual.source_of(args, PROMPTS)
    record = outcome(args, tokenizer, engine, source, steps=6)
    assert sum(report.counts["rollout/dropped_groups"] for report in record.reports) == 3
    assert source.ledger().fates == {"trained": 6 * args.rollout_batch_size, "failed:timeout": 3}


def test_a_crash_between_two_batches_surfaces_at_the_next(configure: Callable[..., Namespace], tokenizer: Any) -> None:
    """Public report slime PR 2238: a fully async worker died, and its loop waited for ever."""
    args = configure("fully-async")
    engine = virtual.Engine(lambda: 3)

    def crash() -> None:
        if engine.requests > 20:
            raise ZeroDivisionError("a bug of the user's")

    engine.fails = crash  # type: ignore[assignment]
    with pytest.raises(ZeroDivisionError, match="a bug"):
        outcome(args, tokenizer, engine, virtual.source_of(args, PROMPTS), steps=9)


def test_prompts_that_run_out_are_an_error_once_no_batch_can_be_filled(
    configure: Callable[..., Namespace], tokenizer: Any
) -> None:
    """Public report NeMo-RL#2917. The batches before it are handed out."""
    args = configure("fully-async", num_epoch=1)
    args.given = args.given | {"num_rollout"}
    source = virtual.source_of(args, 14)
    seen: list[int] = []
    settle = source.settle
    source.settle = lambda step, groups, fate: (seen.append(step), settle(step, groups, fate))  # type: ignore[method-assign,assignment]
    with pytest.raises(DataError, match="exhausted after 14 prompts"):
        outcome(args, tokenizer, virtual.Engine(lambda: 3), source, steps=5)
    assert set(seen) == {0, 1, 2}


def test_a_pool_that_is_closed_under_an_update_gives_everything_back(
    configure: Callable[..., Namespace], tokenizer: Any
) -> None:
    args = configure("in-flight", num_rollout=50)
    engine, source = virtual.Engine(lambda: 30), virtual.source_of(args, PROMPTS)
    store = virtual.MemoryStore(args, source)

    async def close_while_paused() -> float:
        _, pool = await virtual.drive(args, tokenizer, engine, store, range(3), lambda: 2.0)
        await pool.pause(flushes=False)
        began = asyncio.get_running_loop().time()
        await pool.close()
        return asyncio.get_running_loop().time() - began

    assert virtual.run_virtually(close_while_paused()) < 3.0
    assert store.counts().leased == 0
    ledger = source.ledger()
    assert ledger.issued == ledger.fates["trained"] + store.counts().ready + len(source.buffer)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(NAMES), st.booleans(), st.integers(1, 5), st.integers(0, 3), st.integers(0, 10**6))
def test_a_resumed_run_trains_the_rest_once_and_keeps_what_was_finished(
    configure: Callable[..., Namespace], tokenizer: Any, name: str, partial: bool, saved: int, redone: int, seed: int
) -> None:
    """Public reports NeMo-RL#3480, #3599, trl#7274: the checkpoint is of step `saved`, `redone` steps after it are lost with their weights."""
    rng, steps = random.Random(seed), 9
    with tempfile.TemporaryDirectory() as folder:
        args = configure(
            name,
            partial_rollout=partial and name != "one-step-ahead",
            num_rollout=steps,
            save=folder,
            load=folder,
            n_samples_per_prompt=1,
        )

        def leg(begin: int, end: int, save: int | None) -> tuple[virtual.Record, virtual.MemoryStore]:
            store = virtual.store_of(args, PROMPTS)
            store.load(begin - 1)
            engine = virtual.Engine(virtual.ragged(rng, 30))
            drive = virtual.drive(args, tokenizer, engine, store, range(begin, end), lambda: 6.0, save)
            return virtual.run_virtually(drive)[0], store

        first, _ = leg(0, saved + 1 + redone, saved)
        second, store = leg(saved + 1, steps, None)
    batches = first.batches[: saved + 1] + second.batches
    trained = Counter(sample.index for batch in batches for sample in flatten(batch.groups))
    assert len(batches) == steps
    assert set(trained.values()) == {1}
    for step, batch in enumerate(batches):
        for sample in flatten(batch.groups):
            oldest = sample.oldest_version()
            assert oldest is not None
            assert args.max_policy_lag is None or step + 1 - oldest <= args.max_policy_lag
    assert store.source.ledger().fates == {"trained": steps * args.rollout_batch_size}  # type: ignore[attr-defined]
    if name != "synchronous":  # every prompt that was drawn is trained: none was skipped by the restart
        assert set(trained) == set(range(steps * args.rollout_batch_size))


@pytest.mark.parametrize("name", NAMES)
def test_a_pool_that_is_closed_within_a_weight_update_does_not_stop_the_next(
    configure: Callable[..., Namespace], tokenizer: Any, name: str
) -> None:
    """The trainer was killed while it sent weights; its replacement sent them, and every request waited for the end of the first update."""
    args = configure(name, num_rollout=4)

    async def lives() -> int:
        engine = virtual.Engine(lambda: 3)
        context = RolloutContext(args, engine, tokenizer)
        pool = Pool(args, context, virtual.store_of(args, PROMPTS), schedule_of(args))
        await pool.batch(0)
        await pool.pause(True)
        await pool.close()
        pool = Pool(args, context, virtual.store_of(args, PROMPTS), schedule_of(args))
        async with asyncio.timeout(10_000):  # of virtual time
            batch, _ = await pool.batch(0)
        await pool.close()
        return len(batch.groups)

    assert virtual.run_virtually(lives()) == args.rollout_batch_size
