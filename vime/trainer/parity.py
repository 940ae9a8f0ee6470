"""Do trainer and engine agree? The difference in log-probability of sampled tokens, and where a difference begins."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region

from vime.errors import VimeError
from vime.trainer import pipeline
from vime.trainer.attention import pack
from vime.trainer.prefix import lay_out, padded

if TYPE_CHECKING:
    from vime.trainer.model import PolicyModel


# Largest difference of hidden states, relative to a layer's largest value, that rounding explains in fp32.
LAYER_TOLERANCE = 1e-4


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

    def within(self, threshold: float) -> bool:
        """Whether the mean is at most `threshold`; not so when it is not a number."""
        return not self.tokens or self.mean <= threshold

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
    lengths = [len(mask) for mask in masks]
    if not sum(lengths):
        return ParityReport(0.0, 0.0, 0)
    kept = torch.tensor([m for mask in masks for m in mask], dtype=torch.bool)
    own = torch.cat([values.detach().cpu() for values in trainer]).double()
    theirs = torch.tensor([value for values in engine for value in values], dtype=torch.float64)
    gap = torch.where(kept, (own - theirs).abs().nan_to_num(float("inf")), torch.zeros_like(own))
    count = int(kept.sum())
    peak = token = int(gap.argmax())
    sample = 0
    while token >= lengths[sample]:
        token -= lengths[sample]
        sample += 1
    worst = (indices[sample], token) if count else (None, None)
    return ParityReport(gap.sum().item() / max(count, 1), gap[peak].item(), count, *worst)


def gather(own: ParityReport, group: dist.ProcessGroup) -> ParityReport:
    """One report over the ranks of `group`; a collective."""
    if group.size() == 1:
        return own
    reports: list[Any] = [None] * group.size()
    dist.all_gather_object(reports, own, group=group)
    tokens = sum(report.tokens for report in reports)
    worst = max(reports, key=lambda report: report.max)
    total = sum(report.mean * report.tokens for report in reports)
    return dataclasses.replace(worst, mean=total / max(tokens, 1), tokens=tokens)


def refusal(report: ParityReport, threshold: float, layers: LayerReport | None, where: str) -> VimeError:
    """The error that stops a run whose engine is not the trainer."""
    return VimeError(
        f"refusing to train: {report}; the limit is {threshold:.1e}",
        where=where,
        hint=f"{layers}. --parity-threshold sets the limit" if layers else "--parity-threshold sets the limit",
    )


def hf_hidden_states(
    config: Any, weights: Iterable[tuple[str, torch.Tensor]], sequences: Sequence[Sequence[int]]
) -> list[tuple[str, torch.Tensor]]:
    """(layer name, hidden states of all sequences one after another) of a Hugging Face model with these weights, fp32."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    # Loaded as from a file: transformers keeps experts in another form than checkpoints do.
    state = {name: tensor.detach().cpu().float() for name, tensor in weights}
    of_type = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    model = of_type.from_pretrained(None, config=config, state_dict=state, dtype=torch.float32).eval()
    names = ["embedding", *(f"layer {i}" for i in range(config.num_hidden_layers)), "final norm"]
    points = [model.model.embed_tokens, *model.model.layers, model.model.norm]
    seen: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    with torch.no_grad(), capture(dict(zip(names, points, strict=True)), seen):
        for sequence in sequences:
            model(torch.tensor([list(sequence)]), use_cache=False)
    return [(name, torch.cat([x.reshape(-1, x.shape[-1]) for x in seen[name]])) for name in names]


@torch.no_grad()
def compare_layers(
    model: PolicyModel,
    expected: Sequence[tuple[str, torch.Tensor]],
    sequences: Sequence[Sequence[int]],
    tolerance: float,
) -> LayerReport:
    """Hidden states of `model` against `expected` (from `hf_hidden_states`): the largest difference over tokens,
    relative to the layer's largest value. Collective over tensor ranks and stages."""
    parameter = next(model.parameters())
    points = _points(model)
    seen: dict[str, list[torch.Tensor]] = {name: [] for name in points}
    # A padded row, where ranks share its tokens between layers.
    layout = padded(lay_out(sequences, [0] * len(sequences), whole=True), model.share_of_row)
    packed = pack(layout.lengths.tolist(), model.rotary, parameter.dtype, parameter.device)
    tokens = torch.from_numpy(layout.tokens).to(parameter.device)

    def evaluate(_: None) -> pipeline.Passed[None]:
        hidden = model.hidden_states(tokens, packed)
        return (hidden, None) if model.post_process else hidden

    with capture(points, seen):
        pipeline.run(model, [None], evaluate, train=False)
    differences: dict[str, float] = {}
    for name, reference in expected:
        if name not in points:
            continue
        own = seen[name][0].reshape(-1, reference.shape[-1])
        if model.share_of_row > 1:
            own = gather_from_sequence_parallel_region(own, group=model.pg_collection.tp)
        own = own[: len(reference)].float().cpu()
        differences[name] = ((own - reference).abs().max() / reference.abs().max().clamp_min(1e-6)).item()
    of_stages = pipeline.told_by_all(differences)
    return LayerReport([(name, value) for part in of_stages for name, value in part.items()], tolerance)


def _points(model: PolicyModel) -> dict[str, torch.nn.Module]:
    """By the names of `hf_hidden_states`, what this stage has of them."""
    points: dict[str, torch.nn.Module] = {"embedding": model.embedding} if model.pre_process else {}
    points |= {f"layer {layer.layer_number - 1}": layer for layer in model.decoder.layers}
    return points | ({"final norm": model.decoder.final_layernorm} if model.post_process else {})


class capture:
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
