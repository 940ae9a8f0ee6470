"""A pause that ends when the engine stands still, in our own server.

vLLM's own sleeps another 20 ms, so that the outputs of the last step are seen before the call returns; it says itself that nothing needs
that. Outputs carry the version of the weights from the engine's core, however late they are seen, so nothing here needs it either, and
generation would stand still for those 20 ms at every update of the weights.
"""

from __future__ import annotations

import functools
from typing import Any


def install() -> None:
    """Let this process's server pause without that sleep. Idempotent."""
    from vllm.v1.engine.async_llm import AsyncLLM

    whole = AsyncLLM.pause_generation
    if hasattr(whole, "__wrapped__"):
        return

    @functools.wraps(whole)
    async def pause(self: Any, *, mode: Any = "abort", clear_cache: bool = True) -> None:
        if clear_cache:
            await self.renderer.clear_mm_cache_async()
        await self.engine_core.pause_scheduler_async(mode=mode, clear_cache=clear_cache)

    AsyncLLM.pause_generation = pause
