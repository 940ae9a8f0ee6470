"""Do trainer and engine agree? The difference in log-probability of sampled tokens, and where a difference begins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vime.errors import VimeError


@dataclass(frozen=True)
class ParityReport:
    """|log p of the trainer - log p of the engine| over sampled tokens (mask 1), in nats.

    `worst_sample` is a sample index, `worst_token` a position in its response; both None when no token was compared.
    """

    mean: float
    max: float
    tokens: int
    worst_sample: int | None = None
    worst_token: int | None = None

    def __str__(self) -> str:
        if not self.tokens:
            return "no sampled token to compare"
        where = f", at token {self.worst_token} of sample {self.worst_sample}" if self.worst_sample is not None else ""
        return (
            f"|log p trainer - log p engine| mean {self.mean:.2e}, max {self.max:.2e}{where}, over {self.tokens} tokens"
        )


@dataclass(frozen=True)
class LayerReport:
    """Largest difference of hidden states after each layer, and the first layer where it exceeds the tolerance."""

    differences: list[tuple[str, float]]
    tolerance: float

    @property
    def first_divergent(self) -> str | None:
        return next((name for name, difference in self.differences if not difference <= self.tolerance), None)

    def __str__(self) -> str:
        if self.first_divergent is None:
            return (
                f"trainer and Hugging Face agree in every layer (max {max(d for _, d in self.differences):.1e}), so the "
                "difference is on the engine's side: stale weights, other processing of log-probabilities, or a kernel"
            )
        return f"the first layer that differs from Hugging Face is {self.first_divergent}: " + ", ".join(
            f"{name} {difference:.1e}" for name, difference in self.differences
        )


def compare(
    trainer: Sequence[torch.Tensor],
    engine: Sequence[Any],
    masks: Sequence[Sequence[int]],
    indices: Sequence[int],
) -> ParityReport:
    """Compare per-sample log-probabilities [response tokens] of both sides where the mask is 1."""
    total, count, worst = 0.0, 0, (-1.0, None, None)
    for own, other, mask, index in zip(trainer, engine, masks, indices, strict=True):
        kept = torch.as_tensor(mask, dtype=torch.bool)
        if not kept.any():
            continue
        gap = (own.double().cpu() - torch.as_tensor(other, dtype=torch.float64).cpu()).abs()
        gap = torch.where(kept, gap.nan_to_num(float("inf")), torch.zeros_like(gap))
        total, count = total + gap.sum().item(), count + int(kept.sum())
        peak = int(gap.argmax())
        if gap[peak].item() > worst[0]:
            worst = (gap[peak].item(), index, peak)
    return ParityReport(total / max(count, 1), max(worst[0], 0.0), count, worst[1], worst[2])


def require(report: ParityReport, threshold: float, where: str) -> None:
    """Raise VimeError when the mean difference is over `threshold`, or is not a number."""
    if report.tokens and not report.mean <= threshold:
        raise VimeError(
            f"refusing to train: {report}; the limit is {threshold:.1e}",
            where=where,
            hint="the engine does not sample from the trainer's weights: see the layer report, or raise the limit",
        )


def hf_hidden_states(
    config: Any, weights: Iterable[tuple[str, torch.Tensor]], sequences: Sequence[Sequence[int]]
) -> list[tuple[str, torch.Tensor]]:
    """(layer name, hidden states of all sequences one after another) of a Hugging Face model with these weights, fp32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    state = {name: tensor.detach().cpu().float() for name, tensor in weights}
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    names = ["embedding", *(f"layer {i}" for i in range(config.num_hidden_layers)), "final norm"]
    points = [model.model.embed_tokens, *model.model.layers, model.model.norm]
    seen: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    with torch.no_grad(), capture(dict(zip(names, points, strict=True)), seen):
        for sequence in sequences:
            model(torch.tensor([list(sequence)]), use_cache=False)
    return [(name, torch.cat([x.reshape(-1, x.shape[-1]) for x in seen[name]])) for name in names]


class capture:  # noqa: N801  reads as a statement: with capture(points, into)
    """Context in which the output of each named module is appended to `into[name]`."""

    def __init__(self, points: dict[str, torch.nn.Module], into: dict[str, list[torch.Tensor]]) -> None:
        self._handles = [
            module.register_forward_hook(lambda _m, _i, out, name=name: into[name].append(_first(out).detach()))
            for name, module in points.items()
        ]

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()


def _first(output: Any) -> torch.Tensor:
    return output[0] if isinstance(output, tuple) else output
