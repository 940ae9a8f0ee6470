"""A checkpoint of any layout goes on in any other: the same weights to the bit, and then the same training.

Right after loading nothing but places differs. One further rollout is compared with a run that never stopped on one rank,
with the tolerances of `test_ranks`.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy
import pytest
import rank_jobs
from rank_pool import run_ranks

FLAGS: dict[str, Any] = {"adam_eps": 1e-3, "clip_grad": 0.5, "weight_decay": 0.1, "lr_decay_style": "cosine"}
TP: dict[str, Any] = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
#: By family: the layouts of two ranks that it is saved and loaded in. Qwen2's embeddings are tied, its vocabulary padded.
LAYOUTS: dict[str, dict[str, dict[str, Any]]] = {
    "qwen2": {
        "tp": {"tensor_model_parallel_size": 2},
        "dp": {},
        "shared": {"use_distributed_optimizer": True},
        "pp": {"pipeline_model_parallel_size": 2},
    },
    "qwen3_moe": {
        "tp": TP,
        "ep-shared": {"expert_model_parallel_size": 2, "use_distributed_optimizer": True},
        "tp-ep": TP | {"expert_model_parallel_size": 2, "expert_tensor_parallel_size": 1},
        "pp": {"pipeline_model_parallel_size": 2},
    },
    "deepseek_v3": {"tp": TP, "ep-shared": {"expert_model_parallel_size": 2, "use_distributed_optimizer": True}},
}
# The first test waits for all jobs.
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

PAIRS = [(family, a, b) for family, of in LAYOUTS.items() for a, b in itertools.product(of, of) if a != b]


@pytest.fixture(scope="module")
def saved(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, Path]]:
    """Two rollouts in each layout, then every other layout goes on from there."""
    jobs: dict[str, dict[str, Any]] = {}
    roots: dict[str, Path] = {}
    for family, layouts in LAYOUTS.items():
        common = {"checkpoint": str(checkpoints[family])}
        for name, layout in layouts.items():
            roots[f"{family}-{name}"] = root = tmp_path_factory.mktemp(f"{family}-{name}")
            flags = FLAGS | layout | {"save": str(root)}
            jobs[f"{family}-{name}"] = common | {"flags": flags, "rollouts": [0, 1], "save_after": 1}
        for a, b in itertools.product(layouts, layouts):
            if a != b:
                flags = FLAGS | layouts[b] | {"load": str(roots[f"{family}-{a}"])}
                jobs[f"{family}-{a}>{b}"] = common | {"flags": flags, "rollouts": [2]}
    return run_ranks(2, jobs), roots


@pytest.fixture(scope="module")
def straight(checkpoints: dict[str, Path]) -> dict[str, Any]:
    return {f: rank_jobs.train(0, 1, str(checkpoints[f]), FLAGS, [0, 1, 2]) for f in LAYOUTS}


@pytest.mark.parametrize(("family", "a", "b"), PAIRS)
def test_another_layout_goes_on(saved: Any, straight: dict[str, Any], family: str, a: str, b: str) -> None:
    outcomes, _ = saved
    for rank in outcomes:
        loaded = rank[f"{family}-{a}>{b}"]
        assert loaded["start"] == 2
        assert loaded["restored"] == {"cursor": 1}
        for key, before in rank[f"{family}-{a}"]["weights"].items():
            assert numpy.array_equal(loaded["first_weights"][key], before), key
        for key, expected in straight[family]["weights"].items():
            assert numpy.abs(loaded["weights"][key] - expected).max() <= 1e-5, key


@pytest.mark.parametrize(("family", "name"), [(f, name) for f, of in LAYOUTS.items() for name in of])
def test_one_rank_goes_on_from_two(
    saved: Any, straight: dict[str, Any], checkpoints: dict[str, Path], family: str, name: str
) -> None:
    outcomes, roots = saved
    flags = FLAGS | {"load": str(roots[f"{family}-{name}"])}
    alone = rank_jobs.train(0, 1, str(checkpoints[family]), flags, [2])
    for key, before in outcomes[0][f"{family}-{name}"]["weights"].items():
        assert numpy.array_equal(alone["first_weights"][key], before), key
    for key, expected in straight[family]["weights"].items():
        assert numpy.abs(alone["weights"][key] - expected).max() <= 1e-5, key
