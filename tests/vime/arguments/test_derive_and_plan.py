"""Values that follow from others, and the plan that a dry run prints."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from vime.arguments import derive as derivation
from vime.arguments.plan import describe, resolve_plan

Make = Callable[..., Namespace]


def test_a_cpu_run_needs_no_gpu_words(make_args: Make) -> None:
    args = make_args()
    assert (args.actor_num_gpus_per_node, args.rollout_num_gpus, args.distributed_backend) == (1, 1, "gloo")
    assert (args.offload_train, args.offload_rollout) == (False, False)


def test_weights_go_through_memory_that_all_share_and_that_has_room(
    make_args: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def medium(*flags: str) -> str:
        return make_args(*flags).update_weight_transport

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(derivation, "SHARED_MEMORY", tmp_path)
    assert medium() == "shm"
    assert medium("--rollout-external-engine-addrs", "10.0.0.5:8000") == "gloo"
    with monkeypatch.context() as full:
        full.setattr(derivation.shutil, "disk_usage", lambda _: SimpleNamespace(free=-1))
        assert medium() == "gloo"
    monkeypatch.setattr(derivation, "SHARED_MEMORY", tmp_path / "none")
    assert medium() == "gloo"
    monkeypatch.setattr(derivation, "SHARED_MEMORY", tmp_path)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert medium() == "gloo"


def test_a_gpu_run_has_the_defaults_people_know(make_args: Make) -> None:
    args = make_args("--device", "cuda", "--colocate")
    assert (args.num_gpus_per_node, args.actor_num_gpus_per_node, args.rollout_num_gpus) == (8, 8, 8)
    assert (args.offload_train, args.offload_rollout) == (True, True)
    assert (args.distributed_backend, args.update_weight_transport) == ("nccl", "ipc")
    assert not make_args("--device", "cuda", "--colocate", "--no-offload-train").offload_train


def test_auto_takes_what_is_there(make_args: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derivation, "cuda_is_visible", lambda: True)
    assert make_args("--device", "auto").device == "cuda"
    monkeypatch.setattr(derivation, "cuda_is_visible", lambda: False)
    assert make_args("--device", "auto").device == "cpu"


def test_batches_lengths_and_evaluation_follow(make_args: Make) -> None:
    args = make_args(
        "--num-steps-per-rollout",
        "2",
        "--rollout-temperature",
        "0.7",
        "--eval-top-p",
        "0.5",
        "--vllm-max-model-len",
        "64",
    )
    assert (args.global_batch_size, args.over_sampling_batch_size) == (4, 4)
    assert (args.rollout_max_context_len, args.rollout_max_prompt_len) == (64, 63)
    assert (args.eval_temperature, args.eval_top_p, args.eval_max_response_len) == (0.7, 0.5, 8)
    assert args.eps_clip_high == args.eps_clip
    assert args.eval_function_path == args.rollout_function_path


def test_derivation_is_idempotent_and_does_not_touch_its_input(make_args: Make) -> None:
    args = make_args("--save", "/tmp/x", "--dump-details", "/tmp/y")
    before = dict(vars(args))
    again = derivation.derive(args)
    assert vars(args) == before
    assert vars(again) == before


@pytest.mark.parametrize(
    ("flags", "devices", "engines", "ranks"),
    [
        ("", 2, 1, 1),
        ("--colocate", 1, 1, 1),
        ("--actor-num-gpus-per-node 2 --rollout-num-gpus 4 --rollout-num-gpus-per-engine 2", 6, 2, 2),
        ("--actor-num-gpus-per-node 2 --rollout-num-gpus 4 --colocate", 4, 4, 2),
        ("--debug-rollout-only --rollout-num-gpus 2", 2, 2, 0),
        ("--debug-train-only", 1, 0, 1),
        ("--rollout-num-gpus 0 --rollout-external-engine-addrs a:1 b:1", 1, 2, 1),
    ],
)
def test_placement_of_the_plan(make_args: Make, flags: str, devices: int, engines: int, ranks: int) -> None:
    processes = resolve_plan(make_args(*flags.split())).processes
    assert (processes.devices, processes.engines, processes.trainer_ranks) == (devices, engines, ranks)


def test_the_plan_counts_parameters_as_the_model_has_them(make_args: Make) -> None:
    """Against transformers' own count, norms and biases apart."""
    transformers = pytest.importorskip("transformers")
    args = make_args()
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(args.hf_checkpoint))
    matrices = sum(parameter.numel() for parameter in model.parameters() if parameter.ndim == 2)
    memory = resolve_plan(args).memory
    assert memory is not None
    assert memory.parameters == matrices
    assert memory.kv_cache_per_token == 2 * 4 * 2 * 32 * 4


def test_devices_that_are_shared_have_a_plan_for_each_turn(make_args: Make) -> None:
    plan = resolve_plan(make_args("--device", "cuda", "--colocate", "--actor-num-gpus-per-node", "1", "--bf16"))
    memory = plan.memory
    assert memory is not None
    # Adam in mixed precision: bf16 weights, fp32 gradients, main parameters and two moments.
    assert memory.trainer == memory.parameters * 18
    # Both sides' weights, and at most two buckets, here all of the small model.
    assert memory.update == memory.parameters * 6
    assert "in turns:" in describe(plan)
    apart = resolve_plan(make_args("--device", "cuda"))
    assert apart.memory is not None
    assert apart.memory.buckets == 0
    assert "in turns:" not in describe(apart)


def test_the_description_names_the_essentials(make_args: Make) -> None:
    text = describe(resolve_plan(make_args("--lr", "3e-4", "--vllm-enforce-eager", "--wandb-key", "secret")))
    for part in (
        "4 prompts, 8 samples, at most 64 generated tokens",
        "1 optimizer steps of 8 samples",
        "--enforce-eager",
        "lr=0.0003",
    ):
        assert part in text
    assert "secret" not in text


@pytest.mark.parametrize(
    ("flags", "schedule", "lag", "interval"),
    [
        ("", "synchronous", None, 1),
        ("--rollout-schedule one-step-ahead", "one-step-ahead", 1, 1),
        ("--rollout-schedule fully-async --max-policy-lag 3", "fully-async", 3, 1),
        ("--flush-cache-interval 4", "in-flight", 2, 4),
        ("--flush-cache-interval 0", "in-flight", 2, 0),
        ("--rollout-schedule in-flight", "in-flight", 2, 0),
        (
            "--rollout-function-path vime.rollout.fully_async_rollout.generate_rollout_fully_async",
            "fully-async",
            2,
            1,
        ),
    ],
)
def test_the_schedule_follows_from_what_is_given(
    make_args: Make, flags: str, schedule: str, lag: int | None, interval: int
) -> None:
    args = make_args(*flags.split())
    assert (args.rollout_schedule, args.max_policy_lag, args.flush_cache_interval) == (schedule, lag, interval)
    assert args.rollout_function_path == args.eval_function_path == "vime.rollout.generate.generate_rollout"
