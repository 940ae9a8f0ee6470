"""Short answers of the token endpoint, in our own server: tokens and log-probabilities as packed numbers instead of two objects a token.

vLLM's endpoint makes, validates, dumps and prints an object for each token and another for its only candidate: 110 bytes and some ten
microseconds a token, in the one process that all answers go through. A request that asks for `flat_logprobs` (vLLM's own sampling parameter)
and for nothing else beside the sampled tokens gets `{"token_ids": "<text>", "logprobs": {"flat": "<text>"}}` here, the texts base64 of
little-endian int32 and float32: printing and reading decimal numbers took some tenths of a second a step of 256 answers of 512 tokens, while
the engine waited. Every other request, and every server that is not ours, answers as before, and `wire.parse_answer` reads both.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy

#: What stands for a log-probability of minus infinity in vLLM's answers.
_FLOOR = -9999.0


def install() -> None:
    """Let this process's server give short answers. Idempotent."""
    from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateResponseBase
    from vllm.entrypoints.scale_out.token_in_token_out.serving import ServingTokens

    whole = ServingTokens.serve_tokens_full_generator
    if hasattr(whole, "__wrapped__"):
        return

    class Short(GenerateResponseBase):
        """A response that is its own dump: the router prints what `model_dump` returns."""

        def model_dump(self, **_: Any) -> dict[str, Any]:
            return self.__dict__["body"]  # type: ignore[no-any-return]

    @functools.wraps(whole)
    async def serve(self: Any, request: Any, results: Any, request_id: str, model: str, metadata: Any) -> Any:
        if not request.sampling_params.flat_logprobs:
            return await whole(self, request, results, request_id, model, metadata)
        final = None
        async for result in results:
            final = result
        body = None if final is None else short_answer(final, request_id, self.enable_prompt_tokens_details)
        if body is None:
            return await whole(self, request, _once(final), request_id, model, metadata)
        response = Short.model_construct()
        response.__dict__["body"] = body
        return response

    ServingTokens.serve_tokens_full_generator = serve


def short_answer(final: Any, request_id: str, cached: bool) -> dict[str, Any] | None:
    """The answer as JSON values, or None when it holds more than tokens and their log-probabilities, or an error."""
    choices, generated = [], 0
    for output in final.outputs:
        flat = output.logprobs
        tokens = list(output.token_ids)
        extras = (output.routed_experts, output.sampling_mask)
        if any(x is not None for x in extras) or output.finish_reason not in ("stop", "length", "abort"):
            return None
        if getattr(flat, "token_ids", None) != tokens:
            return None  # further candidates, or none at all
        choices.append(
            {
                "index": output.index,
                "token_ids": packed(tokens, "<i4"),
                "logprobs": {"flat": packed(_clamped(flat.logprobs), "<f4")},
                "finish_reason": output.finish_reason,
                "weight_versions": [_plain(span) for span in output.weight_versions or ()],
            }
        )
        generated += len(tokens)
    prompt = len(final.prompt_token_ids or ())
    usage: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
    }
    if cached and final.num_cached_tokens is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": final.num_cached_tokens}
    return {"request_id": request_id, "choices": choices, "usage": usage}


async def _once(final: Any) -> AsyncIterator[Any]:
    if final is not None:
        yield final


def _plain(span: Any) -> dict[str, Any]:
    if isinstance(span, dict):
        return span
    return {"version": span.version, "start": span.start, "end": span.end}


def _clamped(values: Sequence[float]) -> numpy.ndarray:
    found = numpy.asarray(values, numpy.float32)
    return numpy.fmax(found, _FLOOR)  # also where it is not a number


def packed(numbers: Sequence[int] | numpy.ndarray, kind: str) -> str:
    """Base64 of `numbers` as numpy's type `kind`."""
    return base64.b64encode(numpy.asarray(numbers, kind).tobytes()).decode()


def unpacked(text: str, kind: str) -> list[Any]:
    """Undo `packed`. Raises ValueError for a text that is none."""
    found: list[Any] = numpy.frombuffer(base64.b64decode(text, validate=True), kind).tolist()
    return found
