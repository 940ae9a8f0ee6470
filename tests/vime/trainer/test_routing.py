"""Routing replay: engines' records are checked, and Megatron's routers choose what was chosen before, forward and backward."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from tiny_models import VOCAB, make_args, make_samples

from vime.errors import VimeError
from vime.trainer import batching, cpu, parallel
from vime.trainer.attention import PackedAttention, Rotary
from vime.trainer.kernels import RmsNorm
from vime.trainer.model import PolicyModel
from vime.trainer.routing import Routing, narrow, of_sample
from vime.trainer.scorer import Scorer

EXPERTS, TOP, LAYERS = 8, 2, 2
CPU = torch.device("cpu")


def record(tokens: int, seed: int = 0, layers: int = LAYERS) -> np.ndarray:
    """Distinct experts for each token and layer; no row of zeros."""
    rng = np.random.default_rng(seed)
    return np.stack([[rng.permutation(np.arange(1, EXPERTS))[:TOP] for _ in range(layers)] for _ in range(tokens - 1)])


# -- records ---------------------------------------------------------------------------------------------------------------


def test_a_record_gains_a_row_for_the_token_that_was_never_fed() -> None:
    rows = record(6)
    routes = of_sample(rows, 6, [1, 1], EXPERTS, [0, 1], "s")
    assert routes.experts.dtype == np.uint8
    assert np.array_equal(routes.experts[:-1], rows)
    assert routes.known.tolist() == [True] * 5 + [False]
    assert narrow(257) is np.uint16


def test_a_record_of_all_layers_gives_those_with_experts() -> None:
    """Dense first layers are rows of zeros to the engine."""
    rows = record(4, layers=3)
    rows[:, 0] = 0
    routes = of_sample(rows, 4, [1], EXPERTS, [1, 2], "s")
    assert np.array_equal(routes.experts[:-1], rows[:, 1:])


@given(st.integers(0, 300), st.integers(0, 1))
def test_a_few_lost_rows_are_left_to_the_router(lost: int, whole: int) -> None:
    rows = record(301)
    rows[:lost] = 0
    if lost > 64:
        with pytest.raises(
            VimeError, match=f"s: {lost} of 300 tokens have no routed experts" if lost < 300 else "tokens"
        ):
            of_sample(rows, 301, [1], EXPERTS, [0, 1], "s")
    else:
        assert of_sample(rows, 301, [1], EXPERTS, [0, 1], "s").known.sum() == 300 - lost


def test_records_that_cannot_be_right_are_refused() -> None:
    rows = record(5)

    def refuse(expected: str, rows: Any, mask: list[int]) -> None:
        with pytest.raises(VimeError, match=expected):
            of_sample(rows, 5, mask, EXPERTS, [0, 1], "sample 3")

    refuse("no routed experts", None, [1])
    refuse(r"shape \(4, 2\), not \(4, 2, experts per token\)", rows[..., 0], [1])
    refuse(r"shape \(3, 2, 2\)", rows[:-1], [1])
    broken = rows.copy()
    broken[:, 1] = 0
    refuse("MoE layer 1 was never recorded", broken, [1])
    wrong = rows.copy()
    wrong[0, 0, 0] = EXPERTS
    refuse("from 1 to 8, the model has 8", wrong, [1])
    assert not of_sample(None, 5, [0], EXPERTS, [0, 1], "aborted").known.any()


# -- a model -----------------------------------------------------------------------------------------------------------------

FLAGS: dict[str, Any] = {"use_rollout_routing_replay": True}


def make_model(**over: Any) -> PolicyModel:
    """A tiny mixture-of-experts model of Megatron's layers, random but the same at each call."""
    if not parallel_state.model_parallel_is_initialized():
        parallel.init_process_groups(parallel.Layout(1, 1), 0, CPU)
    cpu.apply()
    cpu.seed_rng(0, 0)
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "num_layers": LAYERS, "hidden_size": 32, "ffn_hidden_size": 48, "num_attention_heads": 2, "num_query_groups": 1,
        "kv_channels": 16, "normalization": "RMSNorm", "gated_linear_unit": True, "activation_func": F.silu,
        "add_bias_linear": False, "hidden_dropout": 0.0, "attention_dropout": 0.0, "num_moe_experts": EXPERTS,
        "moe_router_topk": TOP, "moe_ffn_hidden_size": 24, "moe_router_load_balancing_type": "none",
        "moe_token_dispatcher_type": "allgather", "use_cpu_initialization": True, "bias_activation_fusion": False,
        "bias_dropout_fusion": False, "masked_softmax_fusion": False, "gradient_accumulation_fusion": False,
        "apply_rope_fusion": False, "init_method_std": 0.3, "cuda_graph_scope": [],
    }  # fmt: skip
    spec = get_gpt_layer_local_spec(num_experts=EXPERTS, normalization="RMSNorm")
    layer = spec.submodules
    layer.input_layernorm = layer.pre_mlp_layernorm = RmsNorm
    layer.self_attention.submodules.core_attention = PackedAttention
    return PolicyModel(
        SimpleNamespace(vocab=VOCAB),
        Rotary(1e4 ** -(torch.arange(0, 16, 2) / 16), 1.0),
        config=TransformerConfig(**settings | over),
        transformer_layer_spec=TransformerBlockSubmodules(layer_specs=[spec] * LAYERS, layer_norm=RmsNorm),
        vocab_size=VOCAB,
        max_sequence_length=128,
        parallel_output=True,
        share_embeddings_and_output_weights=False,
        position_embedding_type="none",
    )


def chosen_by_token(routing: Routing) -> list[list[set[int]]]:
    chosen = routing.chosen()
    assert chosen is not None
    return [[set(layer) for layer in token] for token in chosen.tolist()]


def test_recorded_experts_are_used_and_the_router_learns() -> None:
    model = make_model()
    routing = Routing(model)
    args = make_args("", **FLAGS)
    samples = make_samples(4, 2)
    for i, sample in enumerate(samples):
        sample.rollout_routed_experts = record(len(sample.tokens), seed=i)
    data = batching.samples_to_train_data(args, samples, routers=routing)
    scorer = Scorer(model, args, CPU, routing=routing)
    batch = scorer.pack(data, [2, 0, 5])
    scores = scorer.forward(batch)
    used = chosen_by_token(routing)
    first = 0
    for i in (2, 0, 5):
        rows = samples[i].rollout_routed_experts.tolist()
        assert used[first : first + len(rows)] == [[set(layer) for layer in token] for token in rows]
        first += len(samples[i].tokens)
    scores.log_probs.sum().backward()
    assert all(router.weight.grad.abs().max() > 0 for router in model.modules() if hasattr(router, "router_replay"))
    free = scorer.forward(batch, bare=True)  # a reference or teacher
    assert chosen_by_token(routing) != used
    assert (free.log_probs - scores.log_probs).abs().max() > 1e-3


def test_replaying_the_routers_own_choice_changes_nothing() -> None:
    model = make_model()
    routing = Routing(model)
    args = make_args("", use_routing_replay=True)
    data = batching.samples_to_train_data(args, make_samples(4, 2))
    scorer = Scorer(model, args, CPU, routing=routing)
    before = scorer.score(data, [scorer.pack(data, [0, 1, 2, 3]), scorer.pack(data, [4, 5])])
    assert data["routes"][7] is None
    assert data["routes"][0].experts.dtype == np.uint8
    after = scorer.score_all(data)  # in other micro-batches
    for i in range(6):
        torch.testing.assert_close(after[i], before[i], rtol=0, atol=5e-6)


def test_choices_of_the_old_policy_outlive_an_update_of_the_router() -> None:
    """The point of replay: after the router moved, tokens still go to the experts that they went to."""
    model = make_model()
    routing = Routing(model)
    args = make_args("", use_routing_replay=True)
    data = batching.samples_to_train_data(args, make_samples(4, 2))
    scorer = Scorer(model, args, CPU, routing=routing)
    scorer.score(data, [scorer.pack(data, list(range(8)))])
    old = chosen_by_token(routing)
    with torch.no_grad():
        for module in model.modules():
            if hasattr(module, "router_replay"):
                module.weight.add_(torch.randn_like(module.weight))
    scorer.forward(batching.with_routes(scorer.pack(data, list(range(8))), data))
    assert chosen_by_token(routing) == old
    scorer.forward(scorer.pack({k: v for k, v in data.items() if k != "routes"}, list(range(8))))
    assert chosen_by_token(routing) != old


def test_recomputed_layers_replay_too() -> None:
    gradients = []
    for over in ({}, {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}):
        model = make_model(**over)
        routing = Routing(model)
        args = make_args("", **FLAGS)
        samples = make_samples(2, 2)
        for i, sample in enumerate(samples):
            sample.rollout_routed_experts = record(len(sample.tokens), seed=i)
        data = batching.samples_to_train_data(args, samples, routers=routing)
        scorer = Scorer(model, args, CPU, routing=routing)
        scorer.forward(scorer.pack(data, [0, 1, 2, 3])).log_probs.sum().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    plain, recomputed = gradients
    assert plain.keys() == recomputed.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(gradient, recomputed[name])


def test_a_lost_row_is_the_routers_to_decide() -> None:
    model = make_model()
    routing = Routing(model)
    args = make_args("", **FLAGS)
    (sample,) = make_samples(1, 1)
    scorer = Scorer(model, args, CPU, routing=routing)
    sample.rollout_routed_experts = record(len(sample.tokens))
    sample.rollout_routed_experts[1] = 0
    data = batching.samples_to_train_data(args, [sample], routers=routing, scoring_only=True)
    batch = scorer.pack(data, [0])
    assert batch.known.tolist() == [t not in (1, len(sample.tokens) - 1) for t in range(len(sample.tokens))]
    scorer.forward(batch)
    used = chosen_by_token(routing)
    assert all(len(layer) == TOP for token in used for layer in token)
    assert used[0] == [set(layer) for layer in sample.rollout_routed_experts[0].tolist()]
