"""Hooks are judged at start by how they will be called."""

from __future__ import annotations

import importlib.util
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vime.arguments import catalogue
from vime.errors import HookError, Problems
from vime.hooks import SPECS, check_hooks, load_hook, load_object
from vime.rollout.types import RolloutFnTrainOutput, eval_output, train_output
from vime.sample import Sample

Make = Callable[..., Namespace]


@pytest.fixture(autouse=True)
def hooks() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("user_hooks", Path(__file__).with_name("user_hooks.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["user_hooks"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["user_hooks"]


def test_every_hook_option_has_a_specification() -> None:
    functions = {
        name
        for name in catalogue.by_name()
        if name.endswith(
            (
                "_function_path",
                "_hook_path",
                "_filter_path",
                "_process_path",
                "_rm_path",
                "_source_path",
                "_postprocess_path",
            )
        )
    }
    assert functions <= SPECS.keys()
    assert SPECS.keys() <= catalogue.by_name().keys()


@pytest.mark.parametrize("option", ["rollout_function_path", "eval_function_path", "data_source_path"])
def test_the_defaults_are_sound(make_args: Make, option: str) -> None:
    load_hook(option, getattr(make_args(), option))


@pytest.mark.parametrize(
    ("option", "path", "said"),
    [
        ("custom_rm_path", "user_hooks.not_async", "must be async"),
        ("custom_rm_path", "user_hooks.too_few", "cannot be called as too_few(args, sample)"),
        ("dynamic_sampling_filter_path", "user_hooks.reward_group", "must not be async"),
        ("data_source_path", "user_hooks.NoMethods", "lacks get_samples, add_samples, save, load, __len__"),
        ("custom_rm_path", "user_hooks.missing", "has no 'missing'"),
        ("custom_rm_path", "user_hooks.seen", "is a list, not a function"),
        ("custom_rm_path", "no.such.module.f", "no module 'no'"),
        ("custom_rm_path", "plain", "is no dotted path"),
    ],
)
def test_a_wrong_hook_is_named_with_its_option(option: str, path: str, said: str) -> None:
    with pytest.raises(HookError) as error:
        load_hook(option, path)
    assert said in str(error.value)
    assert str(error.value).startswith(f"--{option.replace('_', '-')}: ")


def test_an_error_inside_the_users_module_is_told_from_a_missing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_more.py").write_text("import not_installed_anywhere\n")
    (tmp_path / "falls_over.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(HookError, match="needs_more imports 'not_installed_anywhere'"):
        load_object("needs_more.f", "here")
    with pytest.raises(HookError, match="ZeroDivisionError"):
        load_object("falls_over.f", "here")


def test_all_wrong_hooks_are_reported_at_once(make_args: Make) -> None:
    args = make_args()
    args.custom_rm_path = "user_hooks.not_async"
    args.rollout_sample_hook_path = ["user_hooks.shout", "user_hooks.too_few"]
    with pytest.raises(Problems) as error:
        check_hooks(args)
    assert len(error.value.problems) == 2
    check_hooks(make_args())


def test_hooks_of_evaluation_datasets_are_checked_too(make_args: Make, tmp_path: Path) -> None:
    (tmp_path / "eval.yaml").write_text("datasets: {dev: {path: x.jsonl, custom_rm_path: user_hooks.not_async}}")
    with pytest.raises(Problems, match="1 problem"):
        check_hooks(make_args("--eval-config", str(tmp_path / "eval.yaml")))


def test_a_buffer_filter_chooses_what_is_dealt_again(start: Any) -> None:
    _, source = start("--buffer-filter-path", "user_hooks.filter_reversed")
    source.add_samples(source.get_samples(3))
    assert [group[0].label for group in source.get_samples(2)] == ["2", "1"]


def test_older_forms_of_rollout_results_are_accepted_and_others_refused() -> None:
    """Public report slime#1553: the fully async output had another type than the manager expected."""
    sample = Sample()
    assert train_output([sample], "f").samples == [[sample]]
    assert train_output([[sample, [sample]]], "f").samples == [[sample, sample]]
    typed = RolloutFnTrainOutput([[sample]])
    assert train_output(typed, "f") is typed
    assert eval_output({"dev": {}}, "f").data == {"dev": {}}
    with pytest.raises(HookError, match="returned a dict"):
        train_output({"samples": []}, "f")
    with pytest.raises(HookError, match="returned a list"):
        eval_output([], "f")
