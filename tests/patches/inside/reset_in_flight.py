"""Routed experts around prefix-cache resets while steps are in flight. ``reset_in_flight.py MODEL``; prints JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

from vllm import LLM, SamplingParams

PROMPT = [(37 * i + 5) % 300 + 3 for i in range(70)]


def main() -> None:
    llm = LLM(
        sys.argv[1],
        dtype="float32",
        max_model_len=256,
        max_num_seqs=4,
        enforce_eager=True,
        enable_return_routed_experts=True,
        block_size=32,
    )
    engine = llm.llm_engine
    greedy = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)

    def finish(collected: list[Any]) -> Any:
        while engine.has_unfinished_requests():
            collected += engine.step()
        return collected[-1].outputs[0]

    def start(name: str, params: SamplingParams) -> None:
        engine.add_request(name, {"prompt_token_ids": PROMPT}, params)

    start("reference", greedy)
    reference = finish([])

    def same(output: Any) -> bool:
        return (
            list(output.token_ids) == list(reference.token_ids)
            and output.routed_experts.tolist() == reference.routed_experts.tolist()
        )

    found: dict[str, Any] = {
        "async_scheduling": engine.vllm_config.scheduler_config.async_scheduling,
        "shape": list(reference.routed_experts.shape),
        "preempted": [],
    }
    for steps in (2, 5):
        start(f"preempted-{steps}", greedy)
        early = [output for _ in range(steps) for output in engine.step()]
        assert llm.reset_prefix_cache(reset_running_requests=True)
        found["preempted"].append(same(finish(early)))

    # A stop token ends the request one step after the next one was sent to the worker; the reset comes in between.
    stop = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True, stop_token_ids=[reference.token_ids[6]])
    start("stopped", stop)
    stopped = finish([])
    assert stopped.finish_reason == "stop"
    assert llm.reset_prefix_cache()
    start("after", greedy)
    found["after_stop"] = same(finish([]))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
