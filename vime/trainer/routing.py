"""Routing replay: the experts that were chosen for a token before are chosen for it again.

With --use-rollout-routing-replay the engine's choices come with the samples (R3, arXiv 2510.11370); with --use-routing-replay
those of the old policy's forward pass are kept. The router still computes its weights, so gradients reach it; only which
experts they belong to is fixed. Choices stay in force until the next forward pass sets others, so layers that are
recomputed in the backward pass see the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from vime.errors import VimeError
from vime.trainer import pipeline

log = logging.getLogger(__name__)

#: Rows that an engine may have lost (it drops some under preemption): the router decides there.
_TOLERATED_ROWS, _TOLERATED_SHARE = 64, 0.01


@dataclass(frozen=True)
class Routes:
    """Of the tokens of a sample or of a packed row: `experts` [tokens, MoE layers, experts per token], the narrowest
    unsigned type that holds them; `known` bool [tokens], where a choice was recorded."""

    experts: npt.NDArray[Any]
    known: npt.NDArray[np.bool_]


def narrow(experts: int) -> npt.DTypeLike:
    """The type to carry expert numbers in: a byte up to 256 experts."""
    return np.uint8 if experts <= 256 else np.uint16


def of_sample(rows: Any, tokens: int, mask: Sequence[int], experts: int, layers: Sequence[int], name: str) -> Routes:
    """The engine's record of one sample: int [tokens - 1, layers, experts per token], the last token never being fed.

    `layers` are the numbers of the model's MoE layers, from 0: a record may have these or all up to the last. A sample none
    of whose tokens is trained may have no record. Raises VimeError naming the sample: another shape, a number that is no
    expert, a layer that was never recorded, or more lost rows than max(64, 1 %).
    """
    if rows is None:
        if any(mask):
            raise VimeError(
                "the engine returned no routed experts", where=name, hint="--vllm-enable-return-routed-experts does"
            )
        return Routes(np.zeros((tokens, len(layers), 1), narrow(experts)), np.zeros(tokens, bool))
    found: npt.NDArray[Any] = np.asarray(rows)
    if found.ndim != 3 or found.shape[0] != tokens - 1 or found.shape[1] not in (len(layers), max(layers) + 1):
        raise VimeError(
            f"{name}: routed experts have shape {found.shape}, not ({tokens - 1}, {len(layers)}, experts per token)"
        )
    if found.shape[1] != len(layers):
        found = found[:, list(layers)]
    if found.size and not (found.min() >= 0 and found.max() < experts):
        raise VimeError(f"{name}: routed experts from {found.min()} to {found.max()}, the model has {experts}")
    # Distinct experts of one token cannot all be number 0, so where there are several a row of zeros is a lost one.
    lost = np.all(found == 0, axis=-1) & (found.shape[2] > 1)
    missing: npt.NDArray[np.bool_] = np.all(lost, axis=1)
    never = np.all(lost[~missing], axis=0)
    if never.any() and not missing.all():
        raise VimeError(
            f"{name}: MoE layer {layers[int(never.argmax())]} was never recorded",
            hint="the engine's pipeline stages do not report it",
        )
    if missing.sum() > max(_TOLERATED_ROWS, _TOLERATED_SHARE * len(missing)):
        raise VimeError(f"{name}: {missing.sum()} of {len(missing)} tokens have no routed experts")
    if missing.any():
        log.warning("%s: %d tokens have no routed experts; the router decides there", name, missing.sum())
    padded = np.concatenate((found, np.zeros((1, *found.shape[1:]), found.dtype))).astype(narrow(experts))
    return Routes(padded, np.append(~lost.any(1), False))


def lay_out(parts: Sequence[Routes]) -> tuple[torch.Tensor, torch.Tensor]:
    """Routes of samples in one packed row: experts int64 [MoE layers, tokens, experts per token] and known bool [tokens]."""
    width = max(part.experts.shape[2] for part in parts)
    # A sample without a record has one column.
    wide = [
        np.broadcast_to(p.experts, (*p.experts.shape[:2], width)) if not p.known.any() else p.experts for p in parts
    ]
    experts = torch.from_numpy(np.concatenate(wide).astype(np.int64))
    return experts.transpose(0, 1).contiguous(), torch.from_numpy(np.concatenate([part.known for part in parts]))


class LayerReplay:
    """One router's choices. Megatron asks it in place of its own top-k (`router_replay` of a TopKRouter)."""

    def __init__(self) -> None:
        self.experts: torch.Tensor | None = None
        self.known: torch.Tensor | None = None
        self.chosen: torch.Tensor | None = None

    def get_replay_topk(
        self,
        scores: torch.Tensor,
        topk: int,
        num_groups: int | None = None,
        group_topk: int | None = None,
        default_compute_topk: Callable[..., tuple[torch.Tensor, torch.Tensor]] = torch.topk,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """scores [tokens, experts] -> the scores and numbers of each token's experts [tokens, topk]."""
        values, own = default_compute_topk(scores, topk, num_groups=num_groups, group_topk=group_topk)
        if self.experts is None or self.known is None:
            self.chosen = own.detach()
            return values, own
        chosen = torch.where(self.known[:, None], self.experts, own)
        self.chosen = chosen
        return scores.gather(1, chosen), chosen


class Routing:
    """The routers of a model, of which a stage has some. Without MoE layers it does nothing. Collective over the stages.

    `layers` are the numbers of the whole model's MoE layers, from 0, each with so many `experts`."""

    def __init__(self, model: torch.nn.Module) -> None:
        from megatron.core.transformer.moe.router import TopKRouter

        self._routers = [module for module in model.modules() if isinstance(module, TopKRouter)]
        self._layers = [LayerReplay() for _ in self._routers]
        config = getattr(model, "config", None)
        # Ranks that share the tokens between layers each route their run of them.
        self._group = model.pg_collection.tp if config is not None and config.sequence_parallel else None
        for router, layer in zip(self._routers, self._layers, strict=True):
            router.router_replay = layer
        own = [router.layer_number - 1 for router in self._routers]
        experts = self._routers[0].config.num_moe_experts if self._routers else 0
        of_stages = pipeline.told_by_all((own, experts))
        self.layers = [number for numbers, _ in of_stages for number in numbers]
        self.experts: int = max(count for _, count in of_stages)
        self._own = [self.layers.index(number) for number in own]

    def use(self, experts: torch.Tensor | None, known: torch.Tensor | None) -> None:
        """Choices for the next forward pass and its backward pass, as `lay_out` gives them; None: the router's own."""
        if self._group is not None and experts is not None and known is not None:
            experts = experts.chunk(self._group.size(), 1)[self._group.rank()]
            known = known.chunk(self._group.size())[self._group.rank()]
        for number, layer in zip(self._own, self._layers, strict=True):
            layer.experts = None if experts is None else experts[number]
            layer.known = known

    def chosen(self) -> torch.Tensor | None:
        """What the last forward pass chose on this stage, int64 [tokens, its MoE layers, experts per token]; None without any."""
        if not self._layers:
            return None
        found = torch.stack([layer.chosen for layer in self._layers if layer.chosen is not None], 1)
        if self._group is None:
            return found
        every = [torch.empty_like(found) for _ in range(self._group.size())]
        dist.all_gather(every, found, group=self._group)
        return torch.cat(every)


def of_all_stages(own: Sequence[npt.NDArray[Any] | None]) -> list[Routes | None]:
    """By sample, from what each stage's layers chose [tokens, its MoE layers, experts per token]. Collective over the stages."""
    found: list[Routes | None] = []
    for parts in zip(*pipeline.told_by_all(list(own)), strict=True):
        held = [part for part in parts if part is not None]
        found.append(Routes(np.concatenate(held, 1), np.ones(len(held[0]), bool)) if held else None)
    return found
