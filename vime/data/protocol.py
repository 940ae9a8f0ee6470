"""What the rollout asks of a data source, so that ``--data-source-path`` may name a class of the user's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from vime.sample import Sample

#: All answers to one prompt.
Group = list[Sample]


def oldest_version(group: Group) -> int | None:
    """The oldest weights that sampled a token of the group; None when no token was sampled."""
    return min((version for sample in group if (version := sample.oldest_version()) is not None), default=None)


@runtime_checkable
class DataSource(Protocol):
    """Deals groups of unanswered samples and takes unfinished ones back. Built as ``class(args)``."""

    def get_samples(self, num_samples: int) -> list[Group]:
        """`num_samples` groups. Raises DataError when the data is exhausted."""
        ...

    def add_samples(self, groups: list[Group]) -> None:
        """Groups to deal again before new ones."""
        ...

    def save(self, rollout_id: int) -> None:
        """Make durable that everything up to `rollout_id` is trained."""
        ...

    def load(self, rollout_id: int | None) -> None:
        """Continue after `rollout_id`."""
        ...

    def __len__(self) -> int:
        """Prompts of one epoch."""
        ...


@runtime_checkable
class SettlingDataSource(DataSource, Protocol):
    """A data source that accounts for every prompt."""

    def settle(self, rollout_id: int, groups: list[Group], fate: str) -> None:
        """`groups` leave the data source in step `rollout_id`: "trained", or the reason why they never will be."""
        ...


@dataclass(frozen=True)
class Dealt:
    """A group that left the data source. `origin` is what the source said of it. Unsettled ones (`fate` None) have their `group` when
    they wait to be dealt again; settled ones their `fate`, `step`, and number of `samples`."""

    group_index: int
    origin: Any
    group: Group | None = None
    fate: str | None = None
    step: int = -1
    samples: int = 0


@runtime_checkable
class ResumableDataSource(DataSource, Protocol):
    """A data source whose position a durable queue can keep. What it returns must be JSON."""

    def cursor(self) -> dict[str, Any]:
        """The position, without the groups that are out."""
        ...

    def origin(self, group_index: int) -> Any:
        """Where a group that is out comes from."""
        ...

    def resume(self, cursor: dict[str, Any], dealt: list[Dealt], rollout_id: int, where: str) -> bool:
        """Continue from there: groups settled up to step `rollout_id` are done, those after it keep their fate until a checkpoint covers
        them, those with a group are dealt again first. False: the data is another and was begun anew."""
        ...
