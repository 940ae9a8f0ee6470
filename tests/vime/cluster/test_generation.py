"""Which part of the requests each generation worker sends, and what is refused beside workers."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime.cluster.folders import absolute_paths
from vime.cluster.generation import share
from vime.errors import UsageError


@given(places=st.integers(1, 4096), group=st.integers(1, 64), count=st.integers(1, 16))
def test_workers_have_whole_groups_and_together_all_of_them(places: int, group: int, count: int) -> None:
    parts = [share(places, group, number, count) for number in range(count)]
    assert all(part % group == 0 for part in parts)
    assert sum(parts) == places // group * group
    assert max(parts) - min(parts) <= group


def test_more_workers_than_groups_in_flight_are_refused(make_args: Callable[..., Namespace]) -> None:
    for flags, said in (
        (["--rollout-generation-workers", "0"], "--rollout-generation-workers 0"),
        (["--rollout-generation-workers", "3", "--vllm-server-concurrency", "4"], "3 for 2 groups in flight"),
        (
            ["--rollout-generation-workers", "2", "--rollout-function-path", "vime.rollout.sft.generate_rollout"],
            "with --rollout-function-path",
        ),
    ):
        with pytest.raises(UsageError) as refused:
            make_args(*flags)
        assert said in refused.value.render()
    assert (
        make_args("--rollout-generation-workers", "2", "--vllm-server-concurrency", "4").rollout_generation_workers == 2
    )


def test_paths_are_the_drivers_for_workers_that_were_started_elsewhere(
    make_args: Callable[..., Namespace], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    args = make_args("--save", "run")
    args.prompt_data, args.eval_prompt_data, args.hf_checkpoint = (
        "p.jsonl@[0:4]",
        ["toy", "e.jsonl"],
        "org/name-on-a-hub",
    )
    absolute_paths(args)
    assert args.save == str(tmp_path / "run")
    assert args.rollout_data_dir == str(tmp_path / "run" / "rollout_data")
    assert args.prompt_data == str(tmp_path / "p.jsonl@[0:4]")
    assert args.eval_prompt_data == ["toy", str(tmp_path / "e.jsonl")]
    assert args.hf_checkpoint == "org/name-on-a-hub"
    assert args.load is None
