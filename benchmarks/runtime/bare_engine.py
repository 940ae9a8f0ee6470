"""The other peer: vLLM alone, in its own process, on the prompts of the toy. Prints one JSON line."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.marked import tell  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--batches", type=int, required=True)
    args = parser.parse_args()

    from transformers import AutoTokenizer
    from vllm import LLM, SamplingParams

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    texts = [json.loads(line)["prompt"] for line in Path(args.prompts).read_text().splitlines()]
    tokens = [{"prompt_token_ids": ids} for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
    engine = LLM(
        args.model,
        enforce_eager=True,
        dtype="float32",
        max_model_len=64,
        max_num_seqs=256,
        logprobs_mode="processed_logprobs",
    )
    params = SamplingParams(n=8, max_tokens=8, temperature=1.0, logprobs=0, detokenize=False)
    engine.generate(tokens[:32], params, use_tqdm=False)  # warm
    rates = []
    for batch in range(args.batches):
        begun = time.perf_counter()
        answers = engine.generate(tokens[32 * batch : 32 * (batch + 1)], params, use_tqdm=False)
        count = sum(len(one.token_ids) for answer in answers for one in answer.outputs)
        rates.append(count / (time.perf_counter() - begun))
    tell({"tokens_per_s": rates})


if __name__ == "__main__":
    main()
