"""Rules about paths and changes: ``[[path]]`` (moves), ``[[owner]]``, ``[[exclude]]`` and ``[deleted]``."""

from __future__ import annotations

import datetime
from enum import StrEnum
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, field_validator, model_validator

from synctool.policy.globs import Glob
from synctool.policy.rule import Reason, Regex, Rule, Sha, Text, check_template, compiled, wrong


class PathRule(Rule):
    """A move: the first rule that matches an upstream path decides; without one, families are replaced in the path."""

    from_: Text | None = Field(
        default=None,
        alias="from",
        description="A file, or a folder with everything below it; the rest of the path goes through the families.",
    )
    regex: Regex | None = Field(default=None, description="A Python regex for the whole path.")
    to: str = Field(description="The downstream path; may name groups of the regex, which go through the families.")
    keep: bool = Field(
        default=False, description="Whether the rest of the path, or the groups, stay as upstream wrote them."
    )
    reason: str | None = None

    @field_validator("from_", "to")
    @classmethod
    def _is_relative(cls, value: str | None) -> str | None:
        if value is not None and (value.startswith("/") or any(part in (".", "..") for part in value.split("/"))):
            raise wrong(
                f"'{value}' leaves the tree",
                "write the path from the root of the tree, without '.', '..' or a leading '/'",
            )
        return value

    @model_validator(mode="after")
    def _check(self) -> PathRule:
        if (self.from_ is None) == (self.regex is None):
            raise wrong("a path rule needs either 'from' or 'regex'", "keep one of the two")
        if self.regex is not None:
            check_template(compiled(self.regex), self.to)
        return self

    def describe(self) -> str:
        return f"path {self.from_ or self.regex} -> {self.to}"


class OwnerKind(StrEnum):
    """Who decides about a path."""

    MIRROR = "mirror"
    NATIVE = "native"
    EXCLUDE = "exclude"
    PORT = "port"


class Owner(Rule):
    """Who decides about some downstream paths. The last rule that matches wins, as in .gitignore and CODEOWNERS."""

    paths: Annotated[tuple[Glob, ...], Field(min_length=1)] = Field(description="Globs of downstream paths.")
    owner: OwnerKind = Field(
        description="mirror: three-way merge; native: downstream's own; exclude: not taken; port: rewritten here, filed as work."
    )
    reason: Reason = Field(description="Why, for whoever asks later.")

    def describe(self) -> str:
        more = f" and {len(self.paths) - 2} more" if len(self.paths) > 2 else ""
        return f"owner {self.owner.value} {', '.join(self.paths[:2])}{more}"


class Exclude(Rule):
    """An upstream change that is left out."""

    pr: Annotated[int, Field(gt=0)] | None = Field(default=None, description="Pull request number.")
    commit: Sha | None = Field(default=None, description="Commit id, at least 7 digits.")
    reason: Reason = Field(description="Why it is left out.")
    owner: Text = Field(description="Who answers for it.")
    expires: datetime.date | None = Field(
        default=None, description="The first day on which the exclusion no longer holds."
    )

    @model_validator(mode="after")
    def _check(self) -> Exclude:
        if (self.pr is None) == (self.commit is None):
            raise wrong("an exclusion needs either 'pr' or 'commit'", "keep one of the two")
        return self

    def active(self, today: datetime.date) -> bool:
        """Whether it still holds."""
        return self.expires is None or today < self.expires

    def names(self, *, pr: int | None, commit: str | None) -> bool:
        """Whether this is the change with that number or commit id."""
        if self.pr is not None:
            return pr == self.pr
        return commit is not None and self.commit is not None and commit.startswith(self.commit)

    def describe(self) -> str:
        return f"exclude {f'#{self.pr}' if self.pr else self.commit}"


class Deleted(Rule):
    """What a file that one side lacks means."""

    once_deleted: Literal["stays-deleted", "comes-back"] = Field(
        default="stays-deleted", description="A file that downstream had and deleted, changed upstream."
    )
    folder_deleted: Literal["stays-deleted", "comes-back"] = Field(
        default="stays-deleted", description="A new upstream file in a folder of which downstream deleted every file."
    )
    never_ported: Literal["backfill", "skip"] = Field(
        default="backfill", description="A file that downstream never had, changed upstream."
    )
    upstream_deleted: Literal["delete-unchanged", "keep"] = Field(
        default="delete-unchanged",
        description="A file that upstream deleted: go along when downstream's equals the translation, else a conflict; or keep it always.",
    )


class Ownership(NamedTuple):
    """Who decides about one path, and by which rule (``rule`` is a glob or "default", ``where`` is file:line)."""

    kind: OwnerKind
    rule: str
    reason: str
    where: str
