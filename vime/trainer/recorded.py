"""What was recorded of samples when they were drawn, supports and routes: as columns, and laid out for a micro-batch.

A column's entry is `Deferred` where the sample's record lies in a queue still.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from vime.sample import Sample, Stored
from vime.trainer import routing, support
from vime.trainer.deferred import Deferred, made
from vime.trainer.log_probs import Picks

if TYPE_CHECKING:
    from vime.trainer.batching import MicroBatch, TrainData

#: Fields of a MicroBatch, on the host.
Records = dict[str, Any]

_ROUTES = ("rollout_routed_experts",)
_SUPPORTS = ("rollout_top_p_token_ids", "rollout_top_p_offsets", "rollout_top_p_log_probs")


def columns(
    args: Any,
    samples: Sequence[Sample],
    masks: Sequence[list[int]],
    indices: Sequence[int],
    routers: routing.Routing | None,
) -> TrainData:
    """The columns "supports" and "routes" that the flags need, checked where the samples have them with them. Raises VimeError naming
    the sample."""
    named = [(s, mask, f"sample {i}") for s, mask, i in zip(samples, masks, indices, strict=True)]
    found: TrainData = {}
    if support.needed(args):
        found["supports"] = [_when_needed(_SUPPORTS, s, partial(_support, args, mask, name)) for s, mask, name in named]
    if args.use_rollout_routing_replay and routers is not None:
        found["routes"] = [_when_needed(_ROUTES, s, partial(_routes, routers, mask, name)) for s, mask, name in named]
    return found


def waits(data: TrainData, samples: Sequence[int]) -> bool:
    """Whether records of `samples` are still to be read."""
    return any(isinstance(data[name][i], Deferred) for name in ("supports", "routes") if name in data for i in samples)


def of_batch(batch: MicroBatch, data: TrainData) -> Records:
    """All records of the samples of `batch`, which has none yet."""
    return _supports_of(batch, data) | routes_of(batch, data)


def _supports_of(batch: MicroBatch, data: TrainData) -> Records:
    if "supports" not in data:
        return {}
    supports = [made(data["supports"][i]) for i in batch.samples]
    picks, sampler = support.lay_out(supports, [response(data, i) for i in batch.samples])
    if batch.places is not None:
        places = batch.places.cpu()
        number = torch.full((len(batch.masks),), -1).index_copy(0, places, torch.arange(len(places)))
        mine = (number[picks.rows] >= 0).nonzero()[:, 0]
        picks = Picks(number[picks.rows[mine]], picks.ids[mine])
        sampler = None if sampler is None else sampler[mine]
    return {"picks": picks} | ({} if sampler is None else {"sampler": sampler})


def routes_of(batch: MicroBatch, data: TrainData) -> Records:
    """`experts` and `known` where data["routes"] has choices of all samples of `batch`."""
    parts = [part for i in batch.samples if (part := made(data["routes"][i])) is not None] if "routes" in data else []
    if len(parts) < len(batch.samples):
        return {}
    experts, known = routing.lay_out(parts)
    cut = batch.packed.cut
    if cut is not None:
        held = cut.held.cpu()
        return {"experts": experts.index_select(1, held), "known": known.index_select(0, held)}
    missing = len(batch.tokens) - len(known)
    if missing:  # the row's padding is the routers' to send
        experts, known = F.pad(experts, (0, 0, 0, missing)), F.pad(known, (0, missing))
    return {"experts": experts, "known": known}


def response(data: TrainData, sample: int) -> list[int]:
    """Ids of its response."""
    tokens: list[int] = data["tokens"][sample]
    return tokens[len(tokens) - data["response_lengths"][sample] :]


def _when_needed(fields: Sequence[str], sample: Sample, make: Callable[[Sample], Any]) -> Any:
    """`make` of the sample: now, or when a micro-batch needs it if one of `fields` is still in a queue."""
    stored = {name: value for name in fields if isinstance(value := getattr(sample, name), Stored)}
    if not stored:
        return make(sample)

    def read() -> Any:
        whole = copy.copy(sample)
        for name, value in stored.items():
            setattr(whole, name, value.load())
        return make(whole)

    return Deferred(read)


def _support(args: Any, mask: list[int], name: str, sample: Sample) -> support.Support | None:
    return support.of_sample(args, sample, mask, name)


def _routes(routers: routing.Routing, mask: list[int], name: str, sample: Sample) -> routing.Routes:
    rows = sample.rollout_routed_experts
    return routing.of_sample(rows, len(sample.tokens), mask, routers.experts, routers.layers, name)
