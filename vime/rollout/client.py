"""What the rollout side asks of an engine: tokens in, tokens out. ``vime.engine.client`` implements it over HTTP; tests use a double."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from vime.sample import Nucleus, TopK, VersionSpan

FINISH_REASONS = ("stop", "length", "abort")


@dataclass(frozen=True)
class SamplingParams:
    """How to sample one request. top_k -1 means all. `logprobs` 0 asks for the sampled token's only, k for the k best as well.

    `sampling_mask` asks for the nucleus of each token. Only requests with the same `cache_salt` share cached prefixes. `max_context_len` bounds
    prompt and answer together over all turns of a sample (None: unbounded); it is not sent: whoever asks takes it into `max_tokens`.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    min_tokens: int = 0
    skip_special_tokens: bool = False
    logprobs: int = 0
    n: int = 1
    repetition_penalty: float = 1.0
    sampling_mask: bool = False
    cache_salt: str | None = None
    max_context_len: int | None = None

    def with_budget(self, max_tokens: int) -> SamplingParams:
        return replace(self, max_tokens=max_tokens, min_tokens=min(self.min_tokens, max_tokens))


@dataclass(frozen=True)
class Generation:
    """One answer. `logprobs` are processed (temperature, top-p, top-k applied), one for each token.

    `weight_versions` are spans over token_ids; `meta` holds numbers for the trace: cached_tokens, prompt_tokens, queue_s, e2e_s.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    weight_versions: tuple[VersionSpan, ...] = ()
    routed_experts: Any = None
    routed_experts_start: int = 0
    sampling_mask: Nucleus | None = None
    topk: TopK | None = None
    meta: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.logprobs) != len(self.token_ids):
            raise ValueError(f"{len(self.token_ids)} tokens with {len(self.logprobs)} log-probabilities")
        if self.finish_reason not in FINISH_REASONS:
            raise ValueError(f"finish reason {self.finish_reason!r} is none of {', '.join(FINISH_REASONS)}")


@runtime_checkable
class EngineClient(Protocol):
    """Safe to call from many tasks of one event loop at once."""

    async def generate(
        self, token_ids: list[int], sampling_params: SamplingParams, *, session_id: str | None, timeout: float | None
    ) -> Generation:
        """One answer (sampling_params.n is 1).

        Raises EngineError when the engine fails or returns tokens without log-probabilities, EngineTimeout after `timeout` seconds; the
        request is then aborted in the engine.
        """
        ...

    async def generate_group(
        self, token_ids: list[int], sampling_params: SamplingParams, *, session_id: str | None, timeout: float | None
    ) -> list[Generation]:
        """sampling_params.n answers to one prompt in a single request; with a seed, answer i is drawn with seed + i. Raises as `generate`."""
        ...

    async def abort(self, session_ids: Sequence[str] | None) -> None:
        """Abort the running requests of these sessions, or all of this client's (None). They return what they have, finish reason "abort"."""
        ...
