"""Which device belongs to which actor. Pure; `session` asks Ray for the devices."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from vime.errors import UsageError


@dataclass(frozen=True)
class Bundle:
    """One device as Ray reserved it: its place in the placement group, the node's address, the device's number there."""

    index: int
    host: str
    device: int


@dataclass(frozen=True)
class Placement:
    """`trainers`: a bundle a rank. `engines`: the bundles of each engine. `shared` when both use the same devices."""

    trainers: tuple[Bundle, ...]
    engines: tuple[tuple[Bundle, ...], ...]
    shared: bool

    def across(self) -> str | None:
        """Which nodes, when there are several; None on one."""
        trainers = [bundle.host for bundle in self.trainers]
        engines = [bundle.host for own in self.engines for bundle in own]
        if len({*trainers, *engines}) < 2:
            return None
        parts = [("trainer", trainers), ("engines", engines)]
        return ", ".join(f"{name} on {' '.join(dict.fromkeys(hosts))}" for name, hosts in parts if hosts)


def sorted_bundles(bundles: Sequence[Bundle]) -> list[Bundle]:
    """By node, then device, both as numbers: as text, device 10 would come before 2."""
    return sorted(
        bundles, key=lambda one: (ipaddress.ip_address(one.host).version, ipaddress.ip_address(one.host), one.device)
    )


def place(bundles: Sequence[Bundle], trainer_ranks: int, engines: Sequence[int], colocate: bool) -> Placement:
    """Trainers first, then engines, on separate devices; colocated, engines start again at the first device. `engines` are their sizes.

    Raises UsageError when there are too few devices or an engine would stretch over a node's border unevenly.
    """
    ordered = sorted_bundles(bundles)
    offset = 0 if colocate else trainer_ranks
    needed = max(trainer_ranks, offset + sum(engines))
    if len(ordered) < needed:
        raise UsageError(
            f"{needed} devices are needed ({trainer_ranks} for the trainer, {sum(engines)} for engines), "
            f"{len(ordered)} are there",
            hint="fewer --actor-num-gpus-per-node or --rollout-num-gpus, or --colocate",
        )
    ends = list(accumulate(engines, initial=offset))
    cut = tuple(tuple(ordered[start:end]) for start, end in pairwise(ends))
    for number, own in enumerate(cut):
        hosts = {one.host for one in own}
        if len(hosts) > 1:
            raise UsageError(
                f"engine {number} would lie on {len(hosts)} nodes ({', '.join(sorted(hosts))})",
                hint="--rollout-num-gpus-per-engine must divide the devices of a node that engines get",
            )
    return Placement(tuple(ordered[:trainer_ranks]), cut, colocate and bool(trainer_ranks) and bool(engines))


def check_medium(medium: str, placement: Placement) -> None:
    """Raises UsageError when weights cannot travel over `medium` (--update-weight-transport) to all engines: some reach one host only."""
    if medium != "shm" or not placement.trainers:
        return
    first = placement.trainers[0].host
    if away := sorted({one.host for own in placement.engines for one in own} - {first}):
        raise UsageError(
            f"--update-weight-transport shm reaches engines on the trainer's host {first} only, not on {', '.join(away)}",
            hint="leave it out: gloo on a CPU and nccl on GPUs reach other nodes",
        )
