"""A server is judged by the configuration that it reports."""

from __future__ import annotations

import copy
from argparse import Namespace
from typing import Any

import pytest
from served_engine import Served

from vime.engine.requirements import check, check_external, check_teacher, needs_more_than_log_probs
from vime.errors import EngineError

PLAIN: dict[str, Any] = {
    "rollout_top_p": 1.0,
    "rollout_top_k": -1,
    "use_score_centering": False,
    "score_centering_top_k": 128,
    "use_rollout_routing_replay": False,
}
MODEL: dict[str, Any] = {"logprobs_mode": "processed_logprobs", "max_logprobs": 20, "return_sampling_mask": False}
CENTRED = {"use_score_centering": True}
CUT = {"rollout_top_p": 0.8}


@pytest.mark.parametrize(
    ("flags", "model", "said", "hint"),
    [
        ({}, {"logprobs_mode": "raw_logprobs"}, "reports raw_logprobs", "--logprobs-mode processed_logprobs"),
        ({}, {"logprobs_mode": None}, "reports unknown", "--logprobs-mode"),
        (CUT, {}, "does not record which tokens", "--return-sampling-mask"),
        ({"rollout_top_k": 5}, {}, "does not record which tokens", "--return-sampling-mask"),
        (CUT | CENTRED, {"return_sampling_mask": True}, "sampler's log-probabilities", "vllm-score-centering.patch"),
        (
            CUT | CENTRED,
            {"return_sampling_mask": True, "return_sampling_mask_logprobs": False},
            "sampler's log-probabilities",
            "--return-sampling-mask-logprobs",
        ),
        (CENTRED, {"max_logprobs": 128}, "at most 128", "--max-logprobs 129"),
        ({"use_rollout_routing_replay": True}, {}, "routed experts", "--enable-return-routed-experts"),
    ],
)
def test_what_is_missing_is_named(flags: dict[str, Any], model: dict[str, Any], said: str, hint: str) -> None:
    with pytest.raises(EngineError, match=said) as error:
        check(Namespace(**(PLAIN | flags)), {"model_config": MODEL | model}, "http://one:1")
    assert hint in error.value.hint
    assert error.value.where == "http://one:1"
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("flags", "model"),
    [
        ({}, {}),
        (CENTRED, {"max_logprobs": 129}),
        (CENTRED, {"max_logprobs": -1}),
        (CUT, {"return_sampling_mask": True}),
        (CUT | CENTRED, {"return_sampling_mask": True, "return_sampling_mask_logprobs": True}),
    ],
)
def test_what_is_there_passes(flags: dict[str, Any], model: dict[str, Any]) -> None:
    args = Namespace(**(PLAIN | flags))
    check(args, {"model_config": MODEL | model}, "here")
    assert needs_more_than_log_probs(args) is bool(flags)


def test_routed_experts_are_asked_of_what_vllm_returns_beside_the_answer() -> None:
    args = Namespace(**(PLAIN | {"use_rollout_routing_replay": True}))
    check(args, {"model_config": MODEL, "aux_output_config": {"enable_return_routed_experts": True}}, "here")
    assert needs_more_than_log_probs(args)


@pytest.mark.engine
@pytest.mark.timeout(300)
def test_a_stock_server_is_refused_in_one_line(served: Served, engine_args: Namespace) -> None:
    """From what a real server says of itself."""
    configuration = served.control.configuration()
    check(engine_args, configuration, served.process.url)
    args = copy.copy(engine_args)
    args.rollout_top_p, args.use_score_centering = 0.8, True
    with pytest.raises(EngineError, match="does not record which tokens"):
        check(args, configuration, served.process.url)
    configuration["model_config"]["return_sampling_mask"] = True
    with pytest.raises(EngineError, match="sampler's log-probabilities") as error:
        check(args, configuration, served.process.url)
    assert "vllm-score-centering.patch" in error.value.hint


FOREIGN = {
    "model_config": {"dtype": "torch.float32", "max_model_len": 64},
    "weight_transfer_config": {"backend": "vime"},
    "parallel_config": {"worker_extension_cls": "vime.engine.receiver.WorkerExtension"},
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"weight_transfer_config": None}, "cannot take the trainer's weights"),
        ({"parallel_config": {"worker_extension_cls": ""}}, "cannot take the trainer's weights"),
        ({"model_config": {"dtype": "torch.bfloat16"}}, "computes in bfloat16, the trainer in float32"),
        (
            {"model_config": {"dtype": "torch.float32", "max_model_len": 32}},
            "takes 32 tokens, --rollout-max-context-len is 64",
        ),
    ],
)
def test_a_server_that_somebody_else_started_is_judged_by_its_configuration(change: dict[str, Any], said: str) -> None:
    args = Namespace(bf16=False, fp16=False, rollout_max_context_len=64)
    check_external(args, FOREIGN, "here")
    with pytest.raises(EngineError, match=said):
        check_external(args, FOREIGN | change, "here")


def test_a_teacher_at_another_temperature_needs_the_whole_vocabulary() -> None:
    args = Namespace(use_opd=True, rollout_temperature=0.8)
    check_teacher(args, {"model_config": {"max_logprobs": -1}}, "here")
    with pytest.raises(EngineError, match="whole vocabulary"):
        check_teacher(args, {"model_config": {"max_logprobs": 20}}, "here")
