"""What a forge (a place that hosts pull requests) is asked, as values and a protocol."""

from __future__ import annotations

import datetime
from typing import Any, NamedTuple, Protocol

from synctool.errors import EnvironmentFailure


class PullRequest(NamedTuple):
    """A pull request as far as a sync cares. ``state`` is ``open``, ``closed`` or ``merged``; ids are full or None where the forge gives none."""

    number: int
    title: str
    state: str
    url: str = ""
    author: str = ""
    base: str = ""
    head: str = ""
    merge_commit: str | None = None
    body: str = ""
    #: ``owner:branch`` that it comes from.
    branch: str = ""


class Budget(NamedTuple):
    """Requests left in the forge's current window, of how many, and when the window ends (UTC)."""

    remaining: int
    limit: int
    reset: datetime.datetime

    def __str__(self) -> str:
        return f"{self.remaining} of {self.limit} requests left until {self.reset:%H:%M:%S} UTC"


class RateLimited(EnvironmentFailure):
    """The forge asks for a longer pause than a person would wait for."""


class Forge(Protocol):
    """Answers about one project's pull requests."""

    #: Short name for messages.
    name: str

    def pull(self, number: int) -> PullRequest | None:
        """A pull request by number, or None when there is none.

        Raises:
            RateLimited: the budget is spent; the hint says until when.
            EnvironmentFailure: the forge can't be reached, or refuses.
        """
        ...

    def pulls_of_commit(self, oid: str) -> tuple[PullRequest, ...]:
        """The pull requests that contain a commit, empty when the forge knows none. Raises as ``pull``."""
        ...

    def pulls_of_head(self, oid: str) -> tuple[PullRequest, ...]:
        """The open pull requests whose newest commit this is. Raises as ``pull``."""
        ...

    def budget(self) -> Budget | None:
        """What is left to spend, as far as it is known without asking."""
        ...


class PublishingForge(Forge, Protocol):
    """A forge that can also be written to. Every write is safe to call again; none says what it did: callers read back."""

    def open_pulls(self) -> tuple[PullRequest, ...]:
        """All open pull requests, newest first. Raises as ``pull``."""
        ...

    def branch_head(self, branch: str) -> str | None:
        """The commit that a branch (or ``owner:branch`` of a fork) points to at the forge, or None when there is none. Raises as ``pull``."""
        ...

    def create_pull(self, *, title: str, body: str, head: str, base: str, draft: bool) -> int:
        """Open a pull request and return its number. ``head`` is a branch, or ``owner:branch`` of a fork.

        Raises:
            RateLimited: the budget is spent.
            EnvironmentFailure: the forge refuses (the message says why), or can't be reached.
        """
        ...

    def update_pull(
        self, number: int, *, title: str | None = None, body: str | None = None, state: str | None = None
    ) -> None:
        """Change what is not None. ``state`` is ``open`` or ``closed``. Raises as ``create_pull``."""
        ...


def to_json(pull: PullRequest) -> dict[str, Any]:
    """The JSON form, as recordings keep it."""
    return pull._asdict()


def from_json(data: dict[str, Any]) -> PullRequest:
    """The reverse of ``to_json``; unknown keys of newer recordings are ignored.

    Raises:
        KeyError, TypeError: ``data`` is no pull request.
    """
    return PullRequest(
        **{key: data[key] for key in PullRequest._fields if key in data or key in ("number", "title", "state")}
    )
