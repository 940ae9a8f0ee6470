"""Stages together with every other cut, on four processes: losses, norms, weights and log-probabilities are those of one, with the
tolerances of `test_ranks`; a checkpoint of one of these layouts goes on in the next; and what is said when layers do not fit."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import rank_jobs
import tiny_models
from rank_pool import run_ranks

from vime.convert.cut import Cut, Share
from vime.convert.families import entries
from vime.convert.shape import ModelShape
from vime.errors import VimeError

BASE: dict[str, Any] = {"adam_eps": 1e-3, "clip_grad": 0.5, "micro_batch_size": 1}
PP2: dict[str, Any] = {"pipeline_model_parallel_size": 2}
TP2: dict[str, Any] = {"tensor_model_parallel_size": 2}
SP: dict[str, Any] = TP2 | {"sequence_parallel": True}
EP2: dict[str, Any] = {"expert_model_parallel_size": 2}
SHARED: dict[str, Any] = {"use_distributed_optimizer": True}
#: (checkpoint, flags). The qwen2's embeddings are tied.
SPLITS: dict[str, tuple[str, dict[str, Any]]] = {
    "pp4": ("qwen2-4", {"pipeline_model_parallel_size": 4}),
    "pp2-tp2": ("qwen2-4", PP2 | TP2),
    "pp2-tp2sp-uneven": ("llama-3", PP2 | SP | {"decoder_first_pipeline_num_layers": 1}),
    "pp2-dp2-shared": ("qwen2-4", PP2 | SHARED | {"global_batch_size": 4}),
    "pp2-dp2-balanced": (
        "qwen3-4",
        PP2 | {"use_dynamic_batch_size": True, "max_tokens_per_gpu": 24, "balance_data": True},
    ),
    "pp2-cp2": ("qwen3-4", PP2 | {"context_parallel_size": 2}),
    "pp2-cp2-shared": ("qwen2-4", PP2 | SHARED | {"context_parallel_size": 2}),
    "pp2-ep2": ("qwen3_moe-4", PP2 | EP2),
    "pp2-ep2-shared": ("qwen3_moe-4", PP2 | EP2 | SHARED),
    "pp2-tp2sp-moe": ("qwen3_moe-4", PP2 | SP),
    "pp2-tp2sp-ep2": ("qwen3_moe-4", PP2 | SP | EP2 | {"expert_tensor_parallel_size": 1}),
    "pp2-frozen": ("qwen2-4", PP2 | {"freeze_params_name_list": ["embedding", r"layers\.[03]\."]}),
    "pp2-recomputed": (
        "qwen3-4",
        PP2 | {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    ),
}
#: Each goes on where the one before it stopped.
CHAINS: dict[str, list[dict[str, Any]]] = {
    "qwen2-4": [
        PP2 | SHARED,
        TP2 | SHARED,
        {"pipeline_model_parallel_size": 4},
        PP2 | SHARED | {"context_parallel_size": 2},
        PP2 | TP2,
        PP2 | {"decoder_first_pipeline_num_layers": 1},
    ],
    "qwen3_moe-4": [PP2 | EP2 | SHARED, SP | SHARED, PP2 | SP, EP2, {"pipeline_model_parallel_size": 4}, PP2 | EP2],
}


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("deep")
    names = ("qwen2-4", "qwen3-4", "qwen3_moe-4", "llama-3")
    return {
        name: str(tiny_models.make_checkpoint(root / name, name[:-2], tied=name[:-2] == "qwen2", layers=int(name[-1])))
        for name in names
    }


@pytest.fixture(scope="module")
def outcomes(deep: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    jobs: dict[str, dict[str, Any]] = {
        name: {"checkpoint": deep[family], "flags": BASE | flags, "rollouts": [0, 1], "layers": True}
        for name, (family, flags) in SPLITS.items()
    }
    for family, chain in CHAINS.items():
        before = None
        for number, flags in enumerate(chain):
            root = str(tmp_path_factory.mktemp("chain"))
            jobs[f"{family}-{number}"] = {
                "checkpoint": deep[family],
                "flags": BASE | flags | {"save": root, "load": before},
                "rollouts": [number],
                "save_after": number,
            }
            before = root
    return run_ranks(4, jobs)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SPLITS)
def test_stages_and_other_cuts_equal_one_process(
    outcomes: list[dict[str, Any]], deep: dict[str, str], name: str
) -> None:
    family, flags = SPLITS[name]
    own = {key: value for key, value in flags.items() if not key.endswith("_size") or "batch" in key}
    own |= {"sequence_parallel": False, "use_distributed_optimizer": False, "decoder_first_pipeline_num_layers": None}
    single = rank_jobs.train(0, 1, deep[family], BASE | own, [0, 1])
    for rank in outcomes:
        for one, four in zip(single["metrics"], rank[name]["metrics"], strict=True):
            assert set(one) == set(four)
            assert four["train/grad_norm"] == pytest.approx(one["train/grad_norm"], rel=1e-4, abs=1e-6)
            for key in one:
                if key.startswith("train/"):
                    assert four[key] == pytest.approx(one[key], rel=1e-4, abs=2e-5), key
        for key, expected in single["weights"].items():
            assert numpy.abs(rank[name]["weights"][key] - expected).max() <= 1e-5, key
        for mine, expected in zip(rank[name]["log_probs"], single["log_probs"], strict=True):
            assert numpy.abs(mine - expected).max() <= 2e-4


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in SPLITS if "cp2" not in name])
def test_every_layer_is_hugging_faces_and_a_strange_rollout_is_refused(
    outcomes: list[dict[str, Any]], name: str
) -> None:
    depth = int(SPLITS[name][0][-1])
    for rank in outcomes:
        layers = rank[name]["layers"]
        assert [of for of, _ in layers] == ["embedding", *(f"layer {i}" for i in range(depth)), "final norm"]
        assert max(difference for _, difference in layers) < 1e-4
        assert "refusing to train" in rank[name]["refusal"]


@pytest.mark.nightly
@pytest.mark.parametrize("family", CHAINS)
def test_a_checkpoint_goes_through_all_layouts(
    outcomes: list[dict[str, Any]], deep: dict[str, str], family: str
) -> None:
    """Loading changes no weight; after the last layout the weights are those of one process that never stopped."""
    count = len(CHAINS[family])
    straight = rank_jobs.train(0, 1, deep[family], BASE, list(range(count)))
    for rank in outcomes:
        for number in range(1, count):
            before, after = rank[f"{family}-{number - 1}"], rank[f"{family}-{number}"]
            assert after["start"] == number
            assert after["restored"] == {"cursor": number - 1}
            for key, expected in before["weights"].items():
                assert numpy.array_equal(after["first_weights"][key], expected), (number, key)
        for key, expected in straight["weights"].items():
            assert numpy.abs(rank[f"{family}-{count - 1}"]["weights"][key] - expected).max() <= 1e-5, key


def _shape(layers: int, tied: bool = False) -> ModelShape:
    return ModelShape("llama", layers, 8, 8, 2, 2, 4, 11, 1e-6, tied, 16, 1e4, "default", 4)


@pytest.mark.parametrize(
    ("layers", "stages", "first", "last", "spread"),
    [
        (6, 3, None, None, [2, 2, 2]),
        (7, 3, 1, None, [1, 3, 3]),
        (7, 3, 1, 2, [1, 4, 2]),
        (5, 2, None, 2, [3, 2]),
        (5, 2, 2, 3, [2, 3]),
    ],
)
def test_layers_are_spread(layers: int, stages: int, first: int | None, last: int | None, spread: list[int]) -> None:
    shape = _shape(layers)
    cuts = [Cut(stage=Share(rank, stages), first_layers=first, last_layers=last) for rank in range(stages)]
    assert [len(cut.layers(shape)) for cut in cuts] == spread
    assert [i for cut in cuts for i in cut.layers(shape)] == list(range(layers))
    held = [entry.name for entry in entries(shape) for cut in cuts if cut.local_name(entry, shape)]
    assert held == [entry.name for entry in entries(shape)]


@pytest.mark.parametrize(
    ("layers", "first", "last"), [(5, None, None), (4, 4, None), (4, None, 5), (4, 1, 1), (4, 0, None), (1, None, None)]
)
def test_layers_that_do_not_fit_are_said_in_a_line(layers: int, first: int | None, last: int | None) -> None:
    with pytest.raises(VimeError, match=f"{layers} layers cannot be spread over --pipeline-model-parallel-size 2"):
        Cut(stage=Share(1, 2), first_layers=first, last_layers=last).layers(_shape(layers))


def test_a_tied_embedding_lies_on_both_outer_stages() -> None:
    shape = _shape(3, tied=True)
    embedding = next(entry for entry in entries(shape) if entry.name.startswith("embedding"))
    names = [Cut(stage=Share(rank, 3)).local_name(embedding, shape) for rank in range(3)]
    assert names == [embedding.name, None, "output_layer.weight"]
    assert Cut().local_name(embedding, shape) == embedding.name
