"""Models that are served beside the policy and never trained: a teacher, a judge, a reference. Hooks reach one by ``current().models[name]``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vime.rollout.client import Generation, SamplingParams

if TYPE_CHECKING:
    from vime.engine.client import HttpEngineClient

_TIMEOUT = 600.0


class FrozenModel:
    """One served model. Its servers are known once they are up."""

    def __init__(self, name: str) -> None:
        from vime.engine.client import HttpEngineClient
        from vime.engine.router import local_router

        self.name = name
        self._router = local_router("least_loaded")
        self._client: HttpEngineClient = HttpEngineClient(self._router)

    def set_engines(self, urls: Sequence[str]) -> None:
        self._router.set_engines(urls)

    async def generate(self, token_ids: list[int], params: SamplingParams, session_id: str | None = None) -> Generation:
        """One answer. Raises as `EngineClient.generate`."""
        return await self._client.generate(token_ids, params, session_id=session_id, timeout=_TIMEOUT)

    async def log_probs(self, token_ids: list[int], start: int, temperature: float) -> list[float]:
        """Log-probability of each of ``token_ids[start:]`` given what is before it, at `temperature`: length len(token_ids) - start.

        The engine's log-probabilities of a prompt know no temperature. At another than 1 those of the whole vocabulary are asked for
        (the server needs ``--max-logprobs -1``) and scaled: log p_T(x) = l_x / T - log sum_v exp(l_v / T). Raises EngineError.
        """
        return await self._client.prompt_log_probs(token_ids, start, temperature, timeout=_TIMEOUT)
