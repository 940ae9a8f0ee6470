"""The token endpoint's requests and answers as values of ours. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from vime.engine.flat import unpacked
from vime.errors import EngineError
from vime.rollout.client import Generation, SamplingParams
from vime.sample import Nucleus, TopK, VersionSpan

ROUTE = "/inference/v1/generate"
_ID_PREFIX = "generate-tokens-"


def engine_request_id(request_id: str) -> str:
    """How vLLM calls the request whose X-Request-Id header is `request_id`; aborting goes by that name."""
    return _ID_PREFIX + request_id


def request_body(token_ids: Sequence[int], params: SamplingParams) -> dict[str, Any]:
    """JSON of one request. Log-probabilities are always asked for."""
    sampling: dict[str, Any] = {
        "n": params.n,
        "max_tokens": params.max_tokens,
        "min_tokens": params.min_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "stop_token_ids": list(params.stop_token_ids),
        "skip_special_tokens": params.skip_special_tokens,
        "repetition_penalty": params.repetition_penalty,
        # One more than asked for: the sampled token itself takes a place among the best.
        "logprobs": params.logprobs + 1 if params.logprobs else 0,
        # Only stop texts need the text; the rollout decodes for itself.
        "detokenize": bool(params.stop),
    }
    if not params.logprobs and not params.sampling_mask:
        # Our own servers then answer with packed numbers (see `flat`), and vLLM itself keeps fewer objects.
        sampling["flat_logprobs"] = True
    if params.stop:
        sampling |= {"stop": list(params.stop), "include_stop_str_in_output": True}
    if params.seed is not None:
        sampling["seed"] = params.seed
    salt = {"cache_salt": params.cache_salt} if params.cache_salt else {}
    return {"token_ids": list(token_ids), "sampling_params": sampling} | salt


def scoring_body(token_ids: Sequence[int], temperature: float) -> dict[str, Any]:
    """JSON of a request for the log-probabilities of a text: of its tokens alone, or at another temperature than 1 of the whole vocabulary."""
    # One token must be sampled. Temperature 0 is refused by servers that record what was left to sample from.
    sampling = {"max_tokens": 1, "temperature": 1.0, "top_k": 1, "prompt_logprobs": 0 if temperature == 1.0 else -1}
    return {"token_ids": list(token_ids), "sampling_params": sampling}


def parse_scores(answer: Any, token_ids: Sequence[int], start: int, temperature: float, where: str) -> list[float]:
    """log p at `temperature` of each of ``token_ids[start:]``. Raises EngineError when the answer has not all of them."""
    rows = answer.get("prompt_logprobs") if isinstance(answer, dict) else None
    if rows is None or len(rows) != len(token_ids):
        raise EngineError(f"{len(rows or ())} log-probabilities for {len(token_ids)} tokens", where=where)
    scores = []
    for token, row in zip(token_ids[start:], rows[start:], strict=True):
        if row is None or str(token) not in row:
            raise EngineError(f"no log-probability of token {token}", where=where)
        value = row[str(token)]["logprob"]
        if temperature != 1.0:
            scaled = [one["logprob"] / temperature for one in row.values()]
            top = max(scaled)
            value = value / temperature - top - math.log(sum(math.exp(one - top) for one in scaled))
        scores.append(float(value))
    return scores


def parse_answer(answer: Any, params: SamplingParams, where: str, seconds: float | None = None) -> list[Generation]:
    """The answers in order of their index, which came after `seconds`. Raises EngineError when one lacks what training needs; nothing is filled
    in."""
    try:
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        usage = answer.get("usage") or {}
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        meta = {"prompt_tokens": float(usage.get("prompt_tokens", 0)), "cached_tokens": float(cached or 0)}
        if seconds is not None:
            meta["e2e_s"] = seconds
        generations = [_generation(choice, params, meta, where) for choice in choices]
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(f"an answer that cannot be read: {error!r}", where=where) from error
    if len(generations) != params.n:
        raise EngineError(f"{len(generations)} answers instead of {params.n}", where=where)
    return generations


def _generation(choice: dict[str, Any], params: SamplingParams, meta: dict[str, float], where: str) -> Generation:
    tokens = choice["token_ids"]
    log_probs = choice.get("logprobs") or {}
    content, flat = log_probs.get("content"), log_probs.get("flat")
    if flat is not None:
        tokens, flat = unpacked(tokens, "<i4"), unpacked(flat, "<f4")
        if len(flat) != len(tokens):
            raise EngineError(f"{len(tokens)} tokens came with {len(flat)} log-probabilities", where=where)
        return Generation(tokens, flat, choice["finish_reason"], _spans(choice), meta=meta)
    if tokens and (content is None or len(content) != len(tokens)):
        raise EngineError(
            f"{len(tokens)} tokens came with {len(content or ())} log-probabilities",
            where=where,
            hint="the server must run with --logprobs-mode processed_logprobs and --max-logprobs of at least what is asked for",
        )
    content = content or []
    if any(entry["token_id"] != token for entry, token in zip(content, tokens, strict=True)):
        raise EngineError("log-probabilities of other tokens than those sampled", where=where)
    routes = choice.get("routed_experts")
    return Generation(
        token_ids=tokens,
        logprobs=[entry["logprob"] for entry in content],
        finish_reason=choice["finish_reason"],
        weight_versions=_spans(choice),
        routed_experts=_array(routes) if routes else None,
        sampling_mask=_nucleus(choice, len(tokens), where) if params.sampling_mask else None,
        topk=_topk(content, params.logprobs, where) if params.logprobs else None,
        meta=meta,
    )


def _spans(choice: dict[str, Any]) -> tuple[VersionSpan, ...]:
    return tuple(VersionSpan(one["version"], one["start"], one["end"]) for one in choice.get("weight_versions") or ())


def _topk(content: list[dict[str, Any]], k: int, where: str) -> TopK:
    rows = []
    for entry in content:
        best = sorted(entry["top_logprobs"], key=lambda one: -one["logprob"])[:k]
        if len(best) < k:
            raise EngineError(f"{len(best)} candidates instead of {k}", where=where, hint="raise --vllm-max-logprobs")
        rows.append(best)
    return TopK([[one["token_id"] for one in row] for row in rows], [[one["logprob"] for one in row] for row in rows])


def _nucleus(choice: dict[str, Any], tokens: int, where: str) -> Nucleus:
    mask, values = choice.get("sampling_mask"), choice.get("sampling_mask_logprobs")
    if mask is None or len(mask) != tokens:
        raise EngineError(
            "the engine returned no sampling mask", where=where, hint="start it with --vllm-return-sampling-mask"
        )
    if values is not None and [len(row) for row in values] != [len(row) for row in mask]:
        raise EngineError("the engine's sampling mask and its log-probabilities differ in length", where=where)
    offsets = [0]
    for row in mask:
        offsets.append(offsets[-1] + len(row))
    ids = [token for row in mask for token in row]
    return Nucleus(ids, offsets, None if values is None else [value for row in values for value in row])


def _array(encoded: str) -> Any:
    import base64
    import io

    import numpy as np

    return np.load(io.BytesIO(base64.b64decode(encoded)), allow_pickle=False)
