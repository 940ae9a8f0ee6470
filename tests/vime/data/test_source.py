"""The data source deals every prompt once and knows what became of it."""

from __future__ import annotations

import json
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vime.data.protocol import DataSource, SettlingDataSource
from vime.data.source import RolloutDataSourceWithBuffer
from vime.errors import DataError
from vime.sample import ResponseMeta, Status, VersionSpan

Make = Callable[..., Namespace]
Source = RolloutDataSourceWithBuffer


def rows(groups: list[Any]) -> list[str]:
    return [group[0].label for group in groups]


def test_it_is_a_data_source(make_args: Make) -> None:
    source = Source(make_args())
    assert isinstance(source, DataSource)
    assert isinstance(source, SettlingDataSource)
    assert len(source) == 40


def test_groups_have_siblings_with_running_indices(make_args: Make) -> None:
    first, second = Source(make_args("--n-samples-per-prompt", "3", "--rollout-batch-size", "1")).get_samples(2)
    assert [(s.group_index, s.index, s.rollout_id) for s in first + second] == [
        (g, 3 * g + i, 3 * g + i) for g in (0, 1) for i in range(3)
    ]
    first[0].metadata["x"] = 1
    first[0].tokens.append(0)
    assert first[1].metadata == {}
    assert len(first[1].tokens) == 4


@pytest.mark.parametrize("shuffle", [False, True])
def test_an_epoch_wraps_until_the_batch_is_full(make_args: Make, shuffle: bool) -> None:
    """A batch larger than the dataset broke the reference."""
    source = Source(make_args(*(["--rollout-shuffle"] if shuffle else [])))
    dealt = rows(source.get_samples(100))
    assert Counter(dealt[:40]) == Counter(dealt[40:80]) == Counter(map(str, range(40)))
    assert (dealt[:40] == dealt[40:80]) is not shuffle


def test_shuffled_order_is_a_function_of_seed_and_epoch(make_args: Make) -> None:
    one, same = (Source(make_args("--rollout-shuffle")) for _ in range(2))
    other = Source(make_args("--rollout-shuffle", "--rollout-seed", "7"))
    first = rows(one.get_samples(80))
    assert first == rows(same.get_samples(80))
    assert first != rows(other.get_samples(80))


def test_exhausted_data_says_how_much_was_needed(make_args: Make, tmp_path: Path) -> None:
    """Public report NeMo-RL#2917: 10 prompts, batch 8, 5 steps, 1 epoch; the loop spun in silence."""
    path = tmp_path / "ten.jsonl"
    path.write_text("".join(json.dumps({"input": f"p{i}", "label": "x"}) + "\n" for i in range(10)))
    source = Source(
        make_args("--prompt-data", str(path), "--rollout-batch-size", "8", "--num-rollout", "5", "--num-epoch", "1")
    )
    source.get_samples(8)
    with pytest.raises(DataError, match=r"exhausted after 10 prompts \(1 x 10\); 5 steps need at least 40"):
        source.get_samples(8)


def test_a_wrong_group_is_not_put_back(make_args: Make) -> None:
    source = Source(make_args())
    group = source.get_samples(1)[0]
    with pytest.raises(DataError, match="a group of 1 samples"):
        source.add_samples([group[:1]])


def test_the_buffer_comes_first_and_may_be_sorted_by_age(make_args: Make) -> None:
    source = Source(make_args("--buffer-sort-by-staleness"))
    groups = source.get_samples(3)
    for group, version in zip(groups, ("5", "3", None), strict=True):
        if version is not None:
            group[0].append_response_tokens(
                None, [1], [-0.1], True, ResponseMeta(versions=[VersionSpan(version, 0, 1)])
            )
    source.add_samples(groups)
    assert rows(source.get_samples(4)) == ["1", "0", "2", "3"]


def test_resume_redeals_what_was_not_trained_and_nothing_else(make_args: Make, tmp_path: Path) -> None:
    """Public report NeMo-RL#3599: after restarts 30 % of the prompts, mostly the slow ones, were never trained."""
    args = make_args("--save", str(tmp_path), "--load", str(tmp_path))
    source = Source(args)
    groups = source.get_samples(20)
    slow = [groups[3], groups[11]]
    fast = [group for group in groups if group not in slow]
    source.settle(0, fast, "trained")
    source.save(0)

    resumed = Source(args)
    resumed.load(0)
    assert rows(resumed.get_samples(2)) == ["3", "11"]
    assert rows(resumed.get_samples(20)) == [str(i) for i in range(20, 40)]
    resumed.settle(1, slow, "trained")
    assert resumed.ledger().fates == {"trained": 20}
    assert resumed.ledger().samples_trained == 40


def test_one_dropped_group_does_not_pin_the_cursor(make_args: Make, tmp_path: Path) -> None:
    """Public report trl#7274: everything after one stale group was trained again on resume."""
    args = make_args("--save", str(tmp_path), "--load", str(tmp_path))
    source = Source(args)
    groups = source.get_samples(30)
    source.settle(2, groups[5:6], "filter:too_old")
    source.settle(2, groups[:5] + groups[6:], "trained")
    source.save(2)
    resumed = Source(args)
    resumed.load(2)
    assert rows(resumed.get_samples(1)) == ["30"]
    assert resumed.ledger().fates == {"trained": 29, "filter:too_old": 1}


def test_groups_of_a_later_step_are_not_trained_in_the_checkpoint(make_args: Make, tmp_path: Path) -> None:
    """Generation runs ahead of training: at the save of step 0, groups of step 1 are finished but not trained."""
    args = make_args("--save", str(tmp_path), "--load", str(tmp_path))
    source = Source(args)
    first, ahead = source.get_samples(4), source.get_samples(4)
    source.settle(0, first, "trained")
    source.settle(1, ahead, "trained")
    source.save(0)
    resumed = Source(args)
    resumed.load(0)
    assert rows(resumed.get_samples(5)) == ["4", "5", "6", "7", "8"]


def test_a_kept_prefix_survives_the_checkpoint(make_args: Make, tmp_path: Path) -> None:
    args = make_args("--save", str(tmp_path), "--load", str(tmp_path), "--partial-rollout")
    source = Source(args)
    group = source.get_samples(1)[0]
    group[1].append_response_tokens(
        None, [7, 8], [-0.5, -0.25], True, ResponseMeta(versions=[VersionSpan("4", 0, 2)]), "ab"
    )
    group[1].status = Status.ABORTED
    source.add_samples([group])
    source.save(0)
    resumed = Source(args)
    resumed.load(0)
    again = resumed.get_samples(1)[0]
    assert [sample.to_dict() for sample in again] == [sample.to_dict() for sample in group]


def test_other_prompts_on_resume_are_an_error_unless_accepted(
    make_args: Make, tmp_path: Path, prompt_file: Path
) -> None:
    """Public report NeMo-RL#2519: a resume with another file skipped its first rows, or died with StopIteration."""
    args = make_args("--save", str(tmp_path), "--load", str(tmp_path))
    source = Source(args)
    source.settle(0, source.get_samples(4), "trained")
    source.save(0)
    prompt_file.write_text(prompt_file.read_text().replace("p05", "P05"))
    with pytest.raises(DataError, match="have changed since the checkpoint") as error:
        Source(args).load(0)
    assert "--accept-new-data" in str(error.value.hint)
    accepted = Source(make_args("--save", str(tmp_path), "--load", str(tmp_path), "--accept-new-data"))
    accepted.load(0)
    group = accepted.get_samples(1)[0]
    assert (group[0].label, group[0].group_index, group[0].index) == ("0", 4, 8)


def test_a_torn_state_file_is_named(make_args: Make, tmp_path: Path) -> None:
    args = make_args("--save", str(tmp_path), "--load", str(tmp_path))
    Source(args).save(3)
    path = tmp_path / "rollout" / "global_dataset_state_dict_3.pt"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match="cannot be read"):
        Source(args).load(3)
    assert list(path.parent.glob("*.tmp")) == []


def test_a_checkpoint_without_data_state_is_not_resumed_in_silence(make_args: Make, tmp_path: Path) -> None:
    """Public report slime#1558: a resume that starts at 0 and does not say so."""
    args = make_args("--load", str(tmp_path))
    Source(args).load(-1)
    with pytest.raises(DataError, match="would be trained again"):
        Source(args).load(4)
    Source(make_args("--load", str(tmp_path), "--accept-new-data")).load(4)


def test_a_group_settles_once(make_args: Make) -> None:
    source = Source(make_args())
    groups = source.get_samples(1)
    source.settle(0, groups, "trained")
    with pytest.raises(DataError, match="was settled as 'trained'"):
        source.settle(0, groups, "trained")


@given(data=st.data())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_every_prompt_is_trained_once_an_epoch_through_any_kills(make_args: Make, data: st.DataObject) -> None:
    """Steps, give-backs, saves and restarts in any order: no prompt is lost and none is trained twice."""
    args = make_args("--rollout-shuffle")
    source, saved = Source(args), None
    prompts, durable, step = source.prompts, [], 0
    trained: list[int] = []
    while len(trained) < 60 and step < 60:
        groups = source.get_samples(data.draw(st.integers(1, 9)))
        keep = data.draw(st.integers(0, len(groups)))
        source.settle(step, groups[:keep], "trained")
        trained += [group[0].group_index for group in groups[:keep]]
        source.add_samples(groups[keep:])
        if data.draw(st.booleans()):
            source.save(step)
            saved, durable = source.state_dict(), list(trained)
        if data.draw(st.integers(0, 4)) == 0:
            source, trained = Source(args, prompts), list(durable)
            if saved is not None:
                source.load_state_dict(saved)
        step += 1
    assert len(trained) == len(set(trained))
    ledger = source.ledger()
    assert ledger.fates["trained"] == len(trained)
    assert ledger.issued == len(trained) + ledger.outstanding
    rest = source.get_samples(ledger.outstanding) if ledger.outstanding else []
    assert sorted([*trained, *(group[0].group_index for group in rest)]) == list(range(ledger.issued))
