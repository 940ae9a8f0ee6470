"""Patched engine and trainer together: what the engine samples under top-p is what the trainer replays and centres."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.engine

PROMPT = [(37 * i + 5) % 300 + 3 for i in range(20)]
TEMPERATURE, TOP_P = 0.6, 0.8


def trainer_of(checkpoint: Path, **flags: Any) -> Any:
    from vime.arguments import catalogue
    from vime.trainer.trainer import Trainer

    defaults = {option.name: option.default for option in catalogue.by_name().values()}
    settled = {
        "hf_checkpoint": str(checkpoint), "rollout_batch_size": 4, "n_samples_per_prompt": 2, "global_batch_size": 8,
        "num_rollout": 8, "micro_batch_size": 4, "lr_decay_style": "constant", "weight_decay": 0.0,
        "rollout_temperature": TEMPERATURE, "rollout_top_p": TOP_P, "use_score_centering": True, "use_tis": True,
        "parity_threshold": 1e-5,
    }  # fmt: skip
    trainer = Trainer(SimpleNamespace(**(defaults | settled | flags)))
    trainer.init()
    return trainer


@pytest.fixture(autouse=True)
def _leave_groups() -> Any:
    yield
    from vime.trainer import parallel

    parallel.destroy_process_groups()


def draw(masks: Any, prompt: list[int], n: int, max_tokens: int, seed: int, first: int = 0) -> list[Any]:
    from vime.engine.wire import parse_answer, request_body
    from vime.rollout.client import SamplingParams
    from vime.sample import ResponseMeta, Sample, Status

    params = SamplingParams(
        max_tokens=max_tokens, temperature=TEMPERATURE, top_p=TOP_P, seed=seed, n=n, sampling_mask=True
    )
    body = request_body(prompt, params)
    body["sampling_params"]["ignore_eos"] = True
    samples = []
    for i, answer in enumerate(parse_answer(masks.post("/inference/v1/generate", body), params, "the engine")):
        index = first + i
        sample = Sample(index=index, group_index=seed, rollout_id=index, tokens=list(prompt), reward=float(index % 3))
        meta = ResponseMeta(nucleus=answer.sampling_mask)
        sample.append_response_tokens(None, answer.token_ids, answer.logprobs, True, meta)
        sample.status = Status.COMPLETED
        samples.append(sample)
    return samples


def test_replayed_ratio_is_one_and_stays_one_at_learning_rate_zero(masks: Any, models: dict[str, Path]) -> None:
    """Five steps at temperature 0.6 and top-p 0.8: trainer and engine agree within 1e-5 at each."""
    trainer = trainer_of(models["a"], lr=0.0)
    for rollout in range(5):
        samples = [s for g in range(4) for s in draw(masks, PROMPT[g:], 2, 6, seed=10 * rollout + g, first=2 * g)]
        metrics = trainer.train(rollout, samples)
        assert metrics["train/train_rollout_logprob_abs_diff"] <= 1e-5
        assert metrics["train/ois"] == pytest.approx(1.0, abs=1e-4)


def test_the_patched_server_says_that_it_can(masks: Any) -> None:
    from vime.engine.requirements import check

    args = SimpleNamespace(
        rollout_top_p=TOP_P, rollout_top_k=-1, use_score_centering=True, use_rollout_routing_replay=False
    )
    check(args, masks.get("/server_info", config_format="json")["vllm_config"], "the engine")


def test_greedy_evaluation_is_answered(masks: Any, models: dict[str, Path]) -> None:
    """The server refuses temperature 0; what is sent instead is the same greedy text."""
    import torch
    from transformers import AutoModelForCausalLM

    from vime.engine.wire import parse_answer, request_body
    from vime.rollout.sampling import eval_sampling

    args = SimpleNamespace(rollout_top_p=TOP_P, rollout_top_k=-1)
    dataset: Any = SimpleNamespace(
        temperature=0.0, top_p=1.0, top_k=-1, max_response_len=6, max_context_len=None, min_new_tokens=0,
        stop=None, stop_token_ids=None, skip_special_tokens=True, repetition_penalty=1.0,
    )  # fmt: skip
    params = eval_sampling(dataset, args)
    body = request_body(PROMPT, params)
    body["sampling_params"]["ignore_eos"] = True
    (answer,) = parse_answer(masks.post("/inference/v1/generate", body), params, "the engine")
    model = AutoModelForCausalLM.from_pretrained(models["a"])
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT + answer.token_ids])).logits[0, len(PROMPT) - 1 : -1]
    assert answer.token_ids == logits.argmax(-1).tolist()


def test_mean_score_under_the_engines_sampler_is_zero_to_sampling_error(masks: Any, models: dict[str, Path]) -> None:
    """Draws of one token from the engine (weights a), scored by a trainer of other weights (b), truncated weights.

    Along the control term's own gradient and 7 random directions of the logits, the centred score's mean over the draws is
    within 4 standard errors of 0 (one honest run in 2 000 exceeds that somewhere). Without the control term the same draws
    are over 8 standard errors away along the first.
    """
    import torch

    from vime.trainer import batching
    from vime.trainer.centering import on_support
    from vime.trainer.support import lay_out, of_sample

    trainer = trainer_of(models["b"], tis_clip=1.5, tis_clip_low=0.2, parity_threshold=None)
    samples = [s for seed in range(100) for s in draw(masks, PROMPT, 2, 1, seed=1000 + 2 * seed)]
    data = batching.samples_to_train_data(trainer.args, samples)
    with torch.no_grad():
        scored = trainer.scorer.pack(data, [0])
        hidden = trainer.model.hidden_states(scored.tokens, scored.packed).index_select(0, scored.rows)
        logits = trainer.model.logits(hidden)[0, :320].double() / TEMPERATURE
    logits.requires_grad_()
    random = torch.randn(7, 320, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    plain, centred = [], []
    for sample in samples:
        support = of_sample(trainer.args, sample, [1], sample.name)
        picks, sampler = lay_out([support], [sample.tokens[-1:]])
        _, on = on_support(logits.log_softmax(-1)[picks.ids], picks.rows, 1)
        term = trainer.scorer.control_term(on, sampler.double(), picks.rows, 1)
        drawn = int((picks.ids == sample.tokens[-1]).nonzero())
        weight = torch.exp(on[drawn].detach() - sampler[drawn]).clamp(0.2, 1.5)
        score = torch.autograd.grad(weight * on[drawn], logits, retain_graph=True)[0]
        control = torch.autograd.grad(term.term.sum(), logits)[0]
        # One prompt: the control term is the same for each draw.
        directions = torch.cat((control[None], random))
        plain.append(directions @ score)
        centred.append(directions @ (score - control))
    deviations = {}
    for name, rows in (("plain", torch.stack(plain)), ("centred", torch.stack(centred))):
        deviations[name] = (rows.mean(0).abs() / (rows.std(0) / len(rows) ** 0.5)).max().item()
    print(f"\nlargest deviation from 0 in standard errors, {len(samples)} draws: {deviations}")
    assert deviations["centred"] < 4 < 8 < deviations["plain"]
