"""Log-probabilities that travel as lists are those that would have travelled as arrays, and arrays are still read."""

from __future__ import annotations

import os
from typing import Any

import pytest

from vime.engine import number_lists


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends in this process, and undone after the test."""
    from vllm.v1.engine.logprobs import LogprobsProcessor
    from vllm.v1.outputs import LogprobsTensors
    from vllm.v1.serial_utils import MsgpackDecoder

    whole = LogprobsProcessor._update_sample_logprobs
    monkeypatch.setattr(LogprobsProcessor, "_update_sample_logprobs", whole)
    monkeypatch.setattr(LogprobsTensors, "tolists", LogprobsTensors.tolists)
    monkeypatch.setattr(MsgpackDecoder, "_decode_ndarray", MsgpackDecoder._decode_ndarray)
    monkeypatch.setenv("VIME_NUMBER_LISTS", "")
    number_lists.install()
    number_lists.install_in_worker()


def step(candidates: int) -> Any:
    import torch
    from vllm.v1.outputs import LogprobsTensors

    torch.manual_seed(0)
    shape = (3, candidates)
    return LogprobsTensors(
        torch.randint(0, 2**20, shape, dtype=torch.int32),
        torch.randn(shape),
        torch.tensor([1, 7, 2], dtype=torch.int32),
    )


@pytest.mark.parametrize("candidates", [1, 200])
@pytest.mark.parametrize("lists", [True, False])
def test_what_arrives_is_what_was_sampled(installed: None, candidates: int, lists: bool) -> None:
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
    from vllm.v1.outputs import LogprobsTensors
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

    sampled = step(candidates)
    made = LogprobsTensors.tolists(sampled) if lists else LogprobsTensors.tolists.__wrapped__(sampled)
    assert isinstance(made.logprobs, list) is lists
    outputs = [EngineCoreOutput(f"r{i}", [i], new_logprobs=made.slice_request(i, 1)) for i in range(3)]
    sent = MsgpackEncoder().encode(EngineCoreOutputs(outputs=outputs))
    for i, one in enumerate(MsgpackDecoder(EngineCoreOutputs).decode(sent).outputs):
        assert one.new_logprobs.logprob_token_ids.tolist() == sampled.logprob_token_ids[i : i + 1].tolist()
        assert one.new_logprobs.logprobs.tolist() == sampled.logprobs[i : i + 1].tolist()
        assert one.new_logprobs.sampled_token_ranks.tolist() == sampled.selected_token_ranks[i : i + 1].tolist()


@pytest.mark.parametrize("wanted", [0, 2])
def test_what_is_kept_of_the_sampled_tokens_is_what_vllm_keeps(installed: None, wanted: int) -> None:
    from vllm.logprobs import FlatLogprobs
    from vllm.v1.engine.logprobs import LogprobsProcessor

    def processor() -> LogprobsProcessor:
        return LogprobsProcessor(
            tokenizer=None, logprobs=FlatLogprobs(), prompt_logprobs=None, cumulative_logprob=0.0, num_logprobs=wanted, num_prompt_logprobs=None
        )  # fmt: skip

    ours, vllms = processor(), processor()
    arrays = type(step(1)).tolists.__wrapped__(step(wanted + 1))
    for positions in (1, 2):
        ours._update_sample_logprobs(arrays.slice_request(0, positions))
        LogprobsProcessor._update_sample_logprobs.__wrapped__(vllms, arrays.slice_request(0, positions))
    assert ours.logprobs == vllms.logprobs
    assert ours.cumulative_logprob == vllms.cumulative_logprob


def test_a_worker_of_another_server_sends_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.outputs import LogprobsTensors

    monkeypatch.delenv("VIME_NUMBER_LISTS", raising=False)
    number_lists.install_in_worker()
    assert not hasattr(LogprobsTensors.tolists, "__wrapped__")
    assert "VIME_NUMBER_LISTS" not in os.environ
