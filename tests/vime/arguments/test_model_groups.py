"""The file of served models."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

from vime.arguments.model_groups import EngineSpec, served_args, url_of
from vime.arguments.plan import describe, resolve_plan
from vime.errors import Problems, UsageError

Make = Callable[..., Namespace]


@pytest.fixture
def with_models(make_args: Make, tmp_path: Path, checkpoint: Path) -> Callable[..., Namespace]:
    def make(yaml: str, *flags: str) -> Namespace:
        path = tmp_path / "models.yaml"
        path.write_text(yaml.replace("CHECKPOINT", str(checkpoint)))
        return make_args("--vllm-config", str(path), *flags)

    return make


def test_without_a_file_the_policy_is_alone(make_args: Make) -> None:
    (policy,) = make_args("--rollout-num-gpus", "4", "--rollout-num-gpus-per-engine", "2").model_groups
    assert (policy.name, policy.trained, policy.engines) == ("policy", True, (EngineSpec(2), EngineSpec(2)))
    (outside,) = make_args("--rollout-external-engine-addrs", "10.0.0.1:8000", "http://[::1]:9/").model_groups
    assert outside.urls == ("http://10.0.0.1:8000", "http://[::1]:9")


def test_models_engines_and_overrides(with_models: Callable[..., Namespace]) -> None:
    args = with_models(
        """
vllm:
  - {name: teacher, model_path: CHECKPOINT/., update_weights: false, num_gpus: 1}
  - name: policy
    num_gpus_per_engine: 2
    server_groups:
      - {num_gpus: 4, overrides: {max-num-seqs: 8}}
      - {num_gpus: 1, num_gpus_per_engine: 1}
  - {name: judge, model_path: elsewhere/judge, urls: ["10.0.0.5:8000"]}
"""
    )
    policy, teacher, judge = args.model_groups
    assert policy.engines == (*(EngineSpec(2, (("max_num_seqs", 8),)),) * 2, EngineSpec(1))
    assert [group.trained for group in args.model_groups] == [True, False, False]
    assert judge.urls == ("http://10.0.0.5:8000",)
    assert args.rollout_num_gpus == 6
    processes = resolve_plan(args).processes
    assert (processes.engines, processes.devices, processes.frozen) == (3, 7, (("teacher", 1), ("judge", 1)))
    assert "frozen         teacher: 1 vLLM" in describe(resolve_plan(args))
    own = served_args(args, teacher, teacher.engines[0])
    assert own.hf_checkpoint == teacher.path != args.hf_checkpoint


@pytest.mark.parametrize(
    ("yaml", "said"),
    [
        ("vllm: []", "no list of models"),
        ("vllm: [{model_path: x}]", "it has no name"),
        ("vllm: [{name: a, nmu_gpus: 1}]", "did you mean num_gpus?"),
        ("vllm: [{name: a, model_path: x}]", "0 models are to get the trainer's weights"),
        ("vllm: [{name: a}, {name: b}]", "2 models are to get the trainer's weights (a, b), one must"),
        ("vllm: [{name: a}, {name: a, model_path: x}]", "two models have one name"),
        ("vllm: [{name: a, num_gpus: 3, num_gpus_per_engine: 2}]", "num_gpus 3 is no multiple"),
        ("vllm: [{name: a, overrides: {max_num_sqes: 3}}]", "did you mean max_num_seqs?"),
        ("vllm: [{name: a, overrides: {tensor_parallel_size: 3}}]", "tensor_parallel_size is set by vime"),
        ("vllm: [{name: a, server_groups: [{worker_type: prefill}]}]", "worker_type prefill is not supported"),
        ("vllm: [{name: a, urls: [nowhere]}]", "'nowhere' is no HOST:PORT"),
        ("vllm: {", "cannot be read"),
    ],
)
def test_what_is_wrong_is_said(with_models: Callable[..., Namespace], yaml: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        with_models(yaml)
    assert said in error.value.render()


@pytest.mark.parametrize(
    ("yaml", "flags", "said"),
    [
        ("vllm: [{name: a, num_gpus: 2}]", ["--rollout-num-gpus", "3"], "have 2"),
        ("vllm: [{name: a}, {name: b, model_path: /no/where}]", [], "no config.json in /no/where, of model b"),
        ("vllm: [{name: a}, {name: b, model_path: CHECKPOINT/.}]", ["--colocate"], "frozen model b"),
        ("vllm: [{name: a, urls: ['h:1']}]", ["--colocate"], "cannot share devices"),
        ("vllm: [{name: a}]", ["--use-opd", "--opd-type", "vllm"], "has no frozen model 'teacher'"),
    ],
)
def test_what_does_not_go_together_is_said(
    with_models: Callable[..., Namespace], yaml: str, flags: list[str], said: str
) -> None:
    with pytest.raises(Problems) as error:
        with_models(yaml, *flags)
    assert said in error.value.render()


@pytest.mark.parametrize("half", [["--debug-train-only"], ["--load-debug-rollout-data", "rollout_{rollout_id}.pt"]])
def test_training_on_rollouts_of_before_serves_no_model(
    with_models: Callable[..., Namespace], make_args: Make, half: list[str]
) -> None:
    """Also what engines could not do does not matter, since there are none."""
    yaml = "vllm: [{name: a, num_gpus: 4}, {name: teacher, model_path: /gone}, {name: judge, model_path: /x, urls: ['h:1']}]"
    args = with_models(
        yaml, *half, "--use-opd", "--opd-type", "vllm", "--rollout-top-p", "0.9", "--rollout-num-gpus", "4"
    )
    assert [(group.name, group.count, group.devices) for group in args.model_groups] == [
        ("a", 0, 0), ("teacher", 0, 0), ("judge", 0, 0)
    ]  # fmt: skip
    processes = resolve_plan(args).processes
    assert (processes.engines, processes.devices) == (0, processes.trainer_ranks)
    (outside,) = make_args("--rollout-external-engine-addrs", "h:1", *half).model_groups
    assert outside.count == 0


def test_what_a_cpu_engine_cannot_record_may_come_from_engines_of_the_file(
    with_models: Callable[..., Namespace],
) -> None:
    args = with_models("vllm: [{name: a, urls: ['h:1']}]", "--rollout-top-p", "0.9")
    assert resolve_plan(args).processes.devices == 1
    with pytest.raises(Problems) as error:
        with_models("vllm: [{name: a}]", "--rollout-top-p", "0.9")
    assert "--rollout-top-p 0.9" in error.value.render()


def test_a_teacher_of_another_vocabulary_is_refused(with_models: Callable[..., Namespace], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"vocab_size": 7}')
    yaml = f"vllm: [{{name: a}}, {{name: teacher, model_path: {tmp_path / 'other'}}}]"
    with pytest.raises(Problems) as error:
        with_models(yaml, "--use-opd", "--opd-type", "vllm")
    assert "has 7 tokens, the student 64" in error.value.render()


@pytest.mark.parametrize("address", ["host", "host:", ":80", "http://host", ""])
def test_addresses_need_a_port(address: str) -> None:
    with pytest.raises(UsageError, match="no HOST:PORT"):
        url_of(address)
