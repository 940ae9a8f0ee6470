"""Which part of a model one rank holds."""

from __future__ import annotations

from dataclasses import dataclass

from vime.convert.families import Entry
from vime.convert.shape import ModelShape


@dataclass(frozen=True)
class Share:
    """Number `rank` of `size` equal parts."""

    rank: int = 0
    size: int = 1


@dataclass(frozen=True)
class Cut:
    """Each tensor is cut into `tensor` shares (those of experts into `expert_tensor`), experts are dealt out as `expert` says,
    and layers as `stage` does: by default one rank holds all."""

    tensor: Share = Share()
    expert: Share = Share()
    expert_tensor: Share = Share()
    stage: Share = Share()

    @property
    def spread(self) -> bool:
        """Whether other ranks hold parameters of which this one has no share."""
        return self.expert.size > 1 or self.stage.size > 1

    def share(self, entry: Entry) -> Share:
        """The share of the tensors of `entry`."""
        return self.tensor if entry.expert is None else self.expert_tensor

    def layers(self, shape: ModelShape) -> range:
        """The layers of this stage, counted over the whole model."""
        count = shape.layers // self.stage.size
        return range(self.stage.rank * count, (self.stage.rank + 1) * count)

    def local_name(self, entry: Entry, shape: ModelShape) -> str | None:
        """What this rank's model calls `entry`, or None where another rank holds it."""
        name, own = entry.name, self.layers(shape)
        if entry.layer is None:
            first = name.startswith("embedding.")
            return name if self.stage.rank == (0 if first else self.stage.size - 1) else None
        if entry.layer not in own:
            return None
        name = name.replace(f"layers.{entry.layer}.", f"layers.{entry.layer - own.start}.", 1)
        if entry.expert is None or shape.experts is None:
            return name
        count = shape.experts.count // self.expert.size
        if entry.expert // count != self.expert.rank:
            return None
        return name.replace(f"local_experts.{entry.expert}.", f"local_experts.{entry.expert % count}.", 1)
