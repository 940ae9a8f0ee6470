"""What the rollout asks of a data source, so that ``--data-source-path`` may name a class of the user's own."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from vime.sample import Sample

#: All answers to one prompt.
Group = list[Sample]


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
