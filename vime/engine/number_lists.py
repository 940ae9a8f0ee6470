"""Log-probabilities of a step travel from engine to server as lists of numbers, and are kept there without detours, in our own servers.

vLLM sends three arrays a token, each encoded and decoded by Python: 8 of the 55 microseconds that a token costs the engine's process, which is what
limits small models on a GPU, and half of the time of the server's. Lists are encoded in C. Both ends must know of it: the server says so to
the processes that it starts, and decodes either form.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

import numpy

_VARIABLE = "VIME_NUMBER_LISTS"


def install() -> None:
    """In the server's process, before it starts its engine. Idempotent."""
    from vllm.v1.serial_utils import MsgpackDecoder

    os.environ[_VARIABLE] = "1"
    _keep_sampled_alone()
    whole = MsgpackDecoder._decode_ndarray
    if hasattr(whole, "__wrapped__"):
        return

    @functools.wraps(whole)
    def decode(self: Any, sent: Sequence[Any]) -> numpy.ndarray:
        if sent and isinstance(sent[0], str):  # an array's type, shape and bytes
            found: numpy.ndarray = whole(self, sent)
            return found
        return numpy.asarray(sent)

    MsgpackDecoder._decode_ndarray = decode


def _keep_sampled_alone() -> None:
    """A short way for requests that want nothing but the sampled tokens' values (see `flat`): two fifths of the process's time otherwise."""
    from vllm.logprobs import FlatLogprobs
    from vllm.v1.engine.logprobs import LogprobsProcessor

    whole = LogprobsProcessor._update_sample_logprobs
    if hasattr(whole, "__wrapped__"):
        return

    @functools.wraps(whole)
    def update(self: Any, sampled: Any) -> None:
        kept = self.logprobs
        if self.num_logprobs or self.tokenizer is not None or type(kept) is not FlatLogprobs:
            return whole(self, sampled)
        for tokens, values, rank in zip(*(column.tolist() for column in sampled[:3]), strict=True):
            place = len(kept.logprobs)
            kept.start_indices.append(place)
            kept.end_indices.append(place + 1)
            kept.token_ids.append(tokens[0])
            kept.logprobs.append(values[0])
            kept.ranks.append(rank)
            kept.decoded_tokens.append(None)
            self.cumulative_logprob += values[0]
        return None

    LogprobsProcessor._update_sample_logprobs = update


def install_in_worker() -> None:
    """In the process that runs the model, where a server of ours started it. Idempotent."""
    from vllm.v1.outputs import LogprobsTensors

    whole = LogprobsTensors.tolists
    if _VARIABLE not in os.environ or hasattr(whole, "__wrapped__"):
        return

    @functools.wraps(whole)
    def tolists(self: Any, *given: Any, **named: Any) -> Any:
        arrays = whole(self, *given, **named)
        return arrays._replace(
            logprob_token_ids=arrays.logprob_token_ids.tolist(),
            logprobs=arrays.logprobs.tolist(),
            sampled_token_ranks=arrays.sampled_token_ranks.tolist(),
        )

    LogprobsTensors.tolists = tolists
