"""The peer of the rollout: vLLM alone in this process, on the prompts that the run uses, with the same engine flags."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.marked import tell  # noqa: E402


def main() -> None:
    model, prompts, samples, tokens, rounds, batch, graphs = sys.argv[1:8]
    from transformers import AutoTokenizer
    from vllm import LLM, SamplingParams

    tokenizer = AutoTokenizer.from_pretrained(model)
    texts = [json.loads(line)["prompt"] for line in Path(prompts).read_text().splitlines()]
    ids = [{"prompt_token_ids": one} for one in tokenizer(texts, add_special_tokens=False)["input_ids"]]
    began = time.perf_counter()
    engine = LLM(
        model, dtype="bfloat16", max_model_len=2048, max_num_seqs=256, gpu_memory_utilization=0.5, logprobs_mode="processed_logprobs",
        compilation_config=json.loads(graphs), enable_prefix_caching=True,
    )  # fmt: skip
    start = time.perf_counter() - began
    params = SamplingParams(n=int(samples), max_tokens=int(tokens), temperature=1.0, logprobs=0, detokenize=False)
    engine.generate(ids[: int(batch)], params, use_tqdm=False)
    rates = []
    for number in range(int(rounds)):
        chosen = ids[int(batch) * number : int(batch) * (number + 1)]
        began = time.perf_counter()
        answers = engine.generate(chosen, params, use_tqdm=False)
        rates.append(sum(len(o.token_ids) for a in answers for o in a.outputs) / (time.perf_counter() - began))
    tell({"tokens_per_s": rates, "start_s": start})
    # Left to the end of the interpreter, which joins children first, the engine's process was waited for without end.
    engine.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
