"""Which part of a model one rank holds."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from vime.convert.families import Entry
from vime.convert.shape import ModelShape
from vime.errors import VimeError

_OUTPUT = "output_layer.weight"


@dataclass(frozen=True)
class Share:
    """Number `rank` of `size` parts."""

    rank: int = 0
    size: int = 1

    @property
    def last(self) -> bool:
        return self.rank == self.size - 1


@dataclass(frozen=True)
class Cut:
    """Each tensor is cut into `tensor` shares (those of experts into `expert_tensor`), experts are dealt out as `expert` says,
    and layers as `stage` does: evenly, but for the first and last stage where `first_layers` and `last_layers` say otherwise. By
    default one rank holds all."""

    tensor: Share = Share()
    expert: Share = Share()
    expert_tensor: Share = Share()
    stage: Share = Share()
    first_layers: int | None = None
    last_layers: int | None = None

    @property
    def spread(self) -> bool:
        """Whether other ranks hold parameters of which this one has no share."""
        return self.expert.size > 1 or self.stage.size > 1

    def share(self, entry: Entry) -> Share:
        """The share of the tensors of `entry`."""
        return self.tensor if entry.expert is None else self.expert_tensor

    def layers(self, shape: ModelShape) -> range:
        """The layers of this stage, counted over the whole model. Raises VimeError when they cannot be spread like that."""
        counts = layers_of_stages(shape.layers, self.stage.size, self.first_layers, self.last_layers)
        start = sum(counts[: self.stage.rank])
        return range(start, start + counts[self.stage.rank])

    def local_name(self, entry: Entry, shape: ModelShape) -> str | None:
        """What this rank's model calls `entry`, or None where another rank holds it.

        An embedding that is the output too lies on the first stage and, as its output layer, on the last.
        """
        name, own = entry.name, self.layers(shape)
        if entry.layer is None:
            first = name.startswith("embedding.")
            if self.stage.rank == 0 and first:
                return name
            if not self.stage.last:
                return None
            return name if not first else _OUTPUT if shape.tied else None
        if entry.layer not in own:
            return None
        name = name.replace(f"layers.{entry.layer}.", f"layers.{entry.layer - own.start}.", 1)
        if entry.expert is None or shape.experts is None:
            return name
        count = shape.experts.count // self.expert.size
        if entry.expert // count != self.expert.rank:
            return None
        return name.replace(f"local_experts.{entry.expert}.", f"local_experts.{entry.expert % count}.", 1)


@functools.cache
def layers_of_stages(layers: int, stages: int, first: int | None, last: int | None) -> tuple[int, ...]:
    """How many of `layers` each stage has, `first` and `last` of them given for the outer ones. Raises VimeError when that does not come out even."""
    counts: list[int | None] = [None] * stages
    if stages > 1:
        counts[0], counts[-1] = first, last
    left, among = layers - sum(given or 0 for given in counts), counts.count(None)
    spread = [left // max(among, 1) if given is None else given for given in counts]
    if sum(spread) != layers or min(spread) < 1:
        raise VimeError(
            f"{layers} layers cannot be spread over --pipeline-model-parallel-size {stages}"
            + (f" with {first or 'an even share'} on the first stage" if first or last else "")
            + (f" and {last or 'an even share'} on the last" if first or last else ""),
            hint="--decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers set those of the outer stages",
        )
    return tuple(spread)
