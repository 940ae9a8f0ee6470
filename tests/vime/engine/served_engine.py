"""A live server as tests use it, and what its answers are compared with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vime.engine.client import HttpEngineClient, open_client
from vime.engine.control import EngineControl
from vime.engine.process import EngineProcess
from vime.engine.router import local_router
from vime.rollout.client import Generation


@dataclass
class Served:
    """A live server, its control plane, and the Hugging Face folders of two models of its shape."""

    process: EngineProcess
    control: EngineControl
    folders: tuple[Path, Path]

    def ask(self, scenario: Callable[[HttpEngineClient], Coroutine[Any, Any, Any]]) -> Any:
        async def run() -> Any:
            router = local_router("least_loaded")
            router.set_engines([self.process.url])
            async with open_client(router) as client:
                return await asyncio.wait_for(scenario(client), 120)

        return asyncio.run(run())


def weights_of(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def largest_gap(folder: Path, prompt: list[int], answers: list[Generation], temperature: float = 1.0) -> float:
    """Largest |log p engine - log p Hugging Face fp32| over the sampled tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    gap = 0.0
    for answer in answers:
        with torch.no_grad():
            logits = model(torch.tensor([prompt + answer.token_ids])).logits[0, len(prompt) - 1 : -1]
        expected = torch.log_softmax(logits / temperature, -1).gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0]
        gap = max(gap, (expected - torch.tensor(answer.logprobs)).abs().max().item())
    return gap
