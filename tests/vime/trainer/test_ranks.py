"""Two processes on gloo give the losses and weights of one: tensor, context, data, expert and pipeline parallel, distributed
optimizer.

Tolerances: losses 1e-5 relative, gradient norms 1e-4 relative, weights 1e-5 absolute (with a large Adam epsilon, so that
the sign of a gradient that is zero but for rounding decides nothing). Sums are made in another order; nothing else differs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import rank_jobs
import torch
from figures import note
from rank_pool import run_ranks

BASE: dict[str, Any] = {"adam_eps": 1e-3, "clip_grad": 0.5}
CENTRED: dict[str, Any] = {
    "rollout_top_p": 0.9,
    "use_score_centering": True,
    "use_tis": True,
    "tis_clip": 3.0,
    "parity_threshold": None,
}
pytestmark = pytest.mark.timeout(900)  # the first test waits for all jobs

SEQUENCE: dict[str, Any] = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
STAGES: dict[str, Any] = {"pipeline_model_parallel_size": 2}
SPLITS: dict[str, dict[str, Any]] = {
    "tp2-qwen3": {"family": "qwen3", "tensor_model_parallel_size": 2},
    "tp2-qwen2-chunked": {"family": "qwen2", "tensor_model_parallel_size": 2, "log_probs_chunk_size": 8},
    "dp2": {"family": "qwen3"},
    "dp2-distopt": {"family": "qwen2", "use_distributed_optimizer": True},
    "dp2-balanced": {
        "family": "llama",
        "use_dynamic_batch_size": True,
        "max_tokens_per_gpu": 24,
        "balance_data": True,
        "normalize_advantages": True,
    },
    "cp2-zigzag": {"family": "qwen3", "context_parallel_size": 2, "entropy_coef": 0.01, "micro_batch_size": 3},
    "cp2-contiguous-distopt": {
        "family": "llama",
        "context_parallel_size": 2,
        "allgather_cp": True,
        "use_distributed_optimizer": True,
        "normalize_advantages": True,
    },
    "cp2-gspo-opsm": {
        "family": "qwen3",
        "context_parallel_size": 2,
        "advantage_estimator": "gspo",
        "use_opsm": True,
        "opsm_delta": 0.0,
        "global_batch_size": 4,
    },
    "cp2-ppo": {"family": "qwen3", "context_parallel_size": 2, "advantage_estimator": "ppo", "lambd": 0.9},
    "dp2-ppo": {"family": "qwen3", "advantage_estimator": "ppo", "gamma": 0.9, "normalize_advantages": True},
    "cp2-centred": {"family": "qwen3", "context_parallel_size": 2} | CENTRED | {"log_probs_chunk_size": 6},
    "tp2-centred": {"family": "llama", "tensor_model_parallel_size": 2} | CENTRED,
    "tp2sp-qwen3": {"family": "qwen3"} | SEQUENCE,
    "tp2sp-qwen3_moe": {"family": "qwen3_moe"} | SEQUENCE,
    "tp2sp-glm4_moe": {"family": "glm4_moe"} | SEQUENCE,
    "tp2sp-deepseek_v3": {"family": "deepseek_v3", "use_distributed_optimizer": True} | SEQUENCE,
    "tp2-deepseek_v3-ep2": {"family": "deepseek_v3", "expert_model_parallel_size": 2, "expert_tensor_parallel_size": 1}
    | SEQUENCE,
    "tp2-glm4": {"family": "glm4", "tensor_model_parallel_size": 2},
    "ep2-qwen3_moe": {"family": "qwen3_moe", "expert_model_parallel_size": 2},
    "ep2-glm4_moe-distopt": {
        "family": "glm4_moe",
        "expert_model_parallel_size": 2,
        "use_distributed_optimizer": True,
    },
    "cp2-deepseek_v3": {"family": "deepseek_v3", "context_parallel_size": 2},
    "tp2sp-replay": {"family": "qwen3_moe", "use_rollout_routing_replay": True} | SEQUENCE,
    "cp2-replay": {"family": "qwen3_moe", "use_rollout_routing_replay": True, "context_parallel_size": 2},
    "ep2-replay": {"family": "qwen3_moe", "use_rollout_routing_replay": True, "expert_model_parallel_size": 2},
    "tp2sp-own-replay": {"family": "deepseek_v3", "use_routing_replay": True, "global_batch_size": 4} | SEQUENCE,
    "cp2-own-replay": {"family": "qwen3_moe", "use_routing_replay": True, "context_parallel_size": 2},
    "pp2-qwen3": {"family": "qwen3", "micro_batch_size": 2, "entropy_coef": 0.01} | STAGES,
    "pp2-qwen2-chunked": {"family": "qwen2", "micro_batch_size": 1, "log_probs_chunk_size": 8} | STAGES,
    "pp2-qwen2-distopt": {"family": "qwen2", "global_batch_size": 4, "use_distributed_optimizer": True} | STAGES,
    "pp2-llama-gspo": {"family": "llama", "advantage_estimator": "gspo", "micro_batch_size": 3} | STAGES,
    "pp2-qwen3_moe": {"family": "qwen3_moe", "micro_batch_size": 2} | STAGES,
    "pp2-replay": {"family": "qwen3_moe", "use_rollout_routing_replay": True, "micro_batch_size": 2} | STAGES,
    "pp2-own-replay": {"family": "deepseek_v3", "use_routing_replay": True, "global_batch_size": 4} | STAGES,
    "pp2-ppo": {"family": "qwen3", "advantage_estimator": "ppo", "gamma": 0.9, "micro_batch_size": 2} | STAGES,
    "pp2-ppo-distopt": {"family": "qwen2", "advantage_estimator": "ppo", "use_distributed_optimizer": True} | STAGES,
    "pp2-deepseek_v3": {"family": "deepseek_v3", "micro_batch_size": 2} | STAGES,
    "pp2-centred": {"family": "qwen3", "micro_batch_size": 2} | STAGES | CENTRED,
    "dp2-idle-rank": {"family": "llama", "global_batch_size": 1, "rollout_batch_size": 1},
}

DUMPED = ("dp2-balanced", "cp2-zigzag", "tp2-qwen3", "pp2-qwen3")


def flags_of(split: dict[str, Any]) -> dict[str, Any]:
    return BASE | {k: v for k, v in split.items() if k != "family"}


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dumps")


@pytest.fixture(scope="module")
def outcomes(
    checkpoints: dict[str, Path], dumps: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """All jobs in one pair of processes: starting them costs more than the work."""
    jobs: dict[str, dict[str, Any]] = {
        name: {"checkpoint": str(checkpoints[split["family"]]), "flags": flags_of(split), "rollouts": [0, 1, 2]}
        for name, split in SPLITS.items()
    }
    for name, extra in {
        "saved-tp2": {"tensor_model_parallel_size": 2},
        "saved-distopt": {"use_distributed_optimizer": True},
        "saved-pp2": STAGES,
    }.items():
        root = str(tmp_path_factory.mktemp(name))
        common = {"checkpoint": str(checkpoints["qwen3"])}
        flags = BASE | extra | {"save": root, "weight_decay": 0.1, "lr_decay_style": "cosine"}
        jobs[f"{name}-straight"] = common | {"flags": flags, "rollouts": [0, 1, 2, 3], "save_after": 1}
        jobs[f"{name}-resumed"] = common | {"flags": flags | {"load": root}, "rollouts": [2, 3]}
    for name in DUMPED:
        jobs[name]["flags"]["save_debug_train_data"] = str(dumps / (name + "-{rollout_id}.pt"))
    return run_ranks(2, jobs)


@pytest.mark.parametrize("name", SPLITS)
def test_two_processes_equal_one(outcomes: list[dict[str, Any]], checkpoints: dict[str, Path], name: str) -> None:
    split = SPLITS[name]
    alone = {"expert_model_parallel_size": 1, "expert_tensor_parallel_size": None, "sequence_parallel": False}
    alone |= {"tensor_model_parallel_size": 1, "context_parallel_size": 1, "log_probs_chunk_size": -1}
    alone |= {"pipeline_model_parallel_size": 1}
    flags = flags_of(split) | alone
    single = rank_jobs.train(0, 1, str(checkpoints[split["family"]]), flags, [0, 1, 2])
    for rank in outcomes:
        pair = rank[name]
        for one, two in zip(single["metrics"], pair["metrics"], strict=True):
            assert set(one) == set(two)
            assert two["train/grad_norm"] == pytest.approx(one["train/grad_norm"], rel=1e-4, abs=1e-6)
            for key in one:
                if key.startswith("train/"):
                    assert two[key] == pytest.approx(one[key], rel=1e-4, abs=2e-5), key
            entry, cut = ("C14" if name.startswith("cp2") else "C13"), f"two processes, {name[:3]}"
            note(entry, f"{cut}: loss", two["train/loss"], one["train/loss"])
            note(entry, f"{cut}: gradient norm", two["train/grad_norm"], one["train/grad_norm"])
        for key, expected in single["weights"].items():
            note(entry, f"{cut}: weights after three steps", pair["weights"][key], expected)
            assert numpy.abs(pair["weights"][key] - expected).max() <= 1e-5, key
        for own, expected in zip(pair["log_probs"], single["log_probs"], strict=True):
            assert numpy.abs(own - expected).max() <= 2e-4


@pytest.mark.parametrize("name", DUMPED)
def test_kept_training_data_do_not_tell_the_cut(
    outcomes: list[dict[str, Any]], checkpoints: dict[str, Path], dumps: Path, name: str, tmp_path: Path
) -> None:
    """One file a rollout with every sample whole, whoever trained it."""
    assert name in outcomes[0]
    whole = {"micro_batch_size": 2, "save_debug_train_data": str(tmp_path / "{rollout_id}.pt")}
    balanced = {key: value for key, value in SPLITS[name].items() if key == "normalize_advantages"}
    rank_jobs.train(0, 1, str(checkpoints[SPLITS[name]["family"]]), BASE | balanced | whole, [0])
    one, two = (torch.load(path, weights_only=True)["columns"] for path in (tmp_path / "0.pt", dumps / f"{name}-0.pt"))
    assert set(one) == set(two)
    for column, values in one.items():
        for mine, theirs in zip(values, two[column], strict=True):
            if isinstance(mine, torch.Tensor):
                torch.testing.assert_close(theirs, mine, rtol=1e-4, atol=2e-5)
            else:
                assert theirs == mine, column


def test_tensor_ranks_hold_half_each(outcomes: list[dict[str, Any]]) -> None:
    whole, half = outcomes[0]["dp2"]["shard_sizes"], outcomes[0]["tp2-qwen3"]["shard_sizes"]
    assert half < 0.55 * whole


def test_stages_hold_a_layer_each(outcomes: list[dict[str, Any]]) -> None:
    assert all(rank["pp2-qwen3"]["shard_sizes"] < 0.55 * rank["dp2"]["shard_sizes"] for rank in outcomes)


@pytest.mark.parametrize("name", [*SPLITS])
def test_ranks_end_with_the_same_weights(outcomes: list[dict[str, Any]], name: str) -> None:
    first, second = (rank[name]["weights"] for rank in outcomes)
    assert all(numpy.array_equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("name", ["saved-tp2", "saved-distopt", "saved-pp2"])
def test_resume_of_two_ranks_is_bit_for_bit(outcomes: list[dict[str, Any]], name: str) -> None:
    for rank in outcomes:
        straight, resumed = rank[f"{name}-straight"], rank[f"{name}-resumed"]
        assert resumed["start"] == 2
        assert resumed["restored"] == {"cursor": 1}
        assert all(numpy.array_equal(straight["weights"][key], resumed["weights"][key]) for key in straight["weights"])


def test_cut_export_equals_whole_export(checkpoints: dict[str, Path], outcomes: list[dict[str, Any]]) -> None:
    """Before training: what two tensor ranks export is the checkpoint itself."""
    from safetensors.torch import load_file

    jobs = {
        "export": {
            "checkpoint": str(checkpoints["qwen3"]),
            "flags": {"tensor_model_parallel_size": 2},
            "rollouts": [],
        }
    }
    original = load_file(checkpoints["qwen3"] / "model.safetensors")
    for rank in run_ranks(2, jobs):
        exported = {name: torch.from_numpy(value) for name, value in rank["export"]["weights"].items()}
        assert set(exported) == set(original)
        assert all(torch.equal(exported[name], original[name]) for name in original)
