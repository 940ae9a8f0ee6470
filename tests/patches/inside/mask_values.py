"""The parts of the sampling mask that one request to a server does not show for certain; prints JSON.

Rows wider than the compact buffer, rows of speculative requests, and outputs that a slow reader gets joined.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from vllm.outputs import CompletionOutput, RequestOutput, SamplingMask
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.output_processor import RequestOutputCollector
from vllm.v1.worker.gpu.sample.output import SamplingMaskTensors


def nested(lists: Any) -> dict[str, Any]:
    return {"token_ids": lists.to_nested_list(), "logprobs": lists.to_nested_logprobs()}


def kernel() -> dict[str, Any]:
    """Two requests, of three and one sampled tokens, four slots each; supports of 3 to 9 ids in rows of 4."""
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(5, 40, generator=generator)
    for row, kept in enumerate((3, 9, 4, 8, 5)):
        dropped = torch.randperm(40, generator=generator)[kept:]
        logits[row, dropped] = -float("inf")
    starts = torch.tensor([0, 3, 5], dtype=torch.int32)
    sampled = torch.tensor([3, 1], dtype=torch.int32)
    halves = [
        SamplingMaskTensors.from_logits(
            logits[low:high],
            torch.tensor([0, high - low], dtype=torch.int32),
            sampled[i : i + 1],
            4,
            4,
            return_logprobs=True,
        )
        for i, (low, high) in enumerate(((0, 3), (3, 5)))
    ]
    whole = SamplingMaskTensors.from_logits(logits, starts, sampled, 4, 4, return_logprobs=True)
    lists = [masks.to_cpu_nonblocking().tolists(sampled.numpy()) for masks in (whole, SamplingMaskTensors.cat(halves))]
    exact = logits.double().log_softmax(-1)
    rows = [0, 1, 2, 3]
    return {
        "whole": nested(lists[0]),
        "joined": nested(lists[1]),
        "second_request": nested(lists[0].slice_request(1, 1)),
        "expected": {
            "token_ids": [logits[row].isfinite().nonzero().flatten().tolist() for row in rows],
            "logprobs": [exact[row][logits[row].isfinite()].tolist() for row in rows],
        },
    }


def output(token: int, masked: bool, finish_reason: str | None = None) -> RequestOutput:
    mask = SamplingMask([[token, token + 1]], [[-0.25 * token, -0.5 * token]]) if masked else None
    completion = CompletionOutput(
        0, "", [token], None, None, finish_reason=finish_reason, sampling_mask=mask, weight_version=f"v{token}"
    )
    return RequestOutput("r", None, [1], None, [completion], finish_reason is not None)


def joined() -> dict[str, Any]:
    """Three outputs put before the reader takes any."""
    collector = RequestOutputCollector(RequestOutputKind.DELTA, "r")
    for made in (output(1, True), output(2, True), output(3, True, "length")):
        collector.put(made)
    taken = collector.get_nowait()
    assert isinstance(taken, RequestOutput)
    completion = taken.outputs[0]
    mask = completion.sampling_mask
    assert mask is not None
    return {
        "token_ids": list(completion.token_ids),
        "mask": mask.token_ids,
        "logprobs": mask.logprobs,
        "weight_version": completion.weight_version,
    }


if __name__ == "__main__":
    print(json.dumps({"kernel": kernel(), "joined": joined()}))
