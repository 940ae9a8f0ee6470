"""What every table of ``vime-sync.toml`` is made of: frozen, checked on loading, and it knows the line it stands on."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, StringConstraints
from pydantic_core import PydanticCustomError

from synctool.policy.globs import Glob, first_match

Text = Annotated[str, StringConstraints(min_length=1)]
Reason = Annotated[str, StringConstraints(min_length=3, strip_whitespace=True)]
Sha = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{7,64}$")]


def wrong(message: str, hint: str) -> PydanticCustomError:
    """A mistake in a rule, with its remedy, as loading tells it."""
    # The text goes in as a value: pydantic would read braces of a user's regex as fields of a template.
    return PydanticCustomError("policy", "{text}", {"text": message, "hint": hint})


def compiled(pattern: str) -> re.Pattern[str]:
    """A regex in multi-line mode that matches something.

    Raises:
        PydanticCustomError: it does not compile, or matches the empty text.
    """
    try:
        pattern_ = re.compile(pattern, re.MULTILINE)
    except re.error as error:
        raise wrong(
            f"regex does not compile: {error}", "escape special characters with a backslash, in a '''literal string'''"
        ) from None
    if pattern_.match(""):
        raise wrong("regex matches the empty text", "make at least one part of it mandatory")
    return pattern_


def check_template(pattern: re.Pattern[str], template: str) -> None:
    """Whether a replacement names only groups that its regex has.

    Raises:
        PydanticCustomError: it names another.
    """
    for number, name in re.findall(r"\\(?:(\d+)|g<(\w+)>)", template):
        wanted = number or name
        known = int(wanted) <= pattern.groups if wanted.isdigit() else wanted in pattern.groupindex
        if not known:
            raise wrong(
                f"'to' names the group {wanted}, which the regex does not have",
                "count the parentheses of the regex, or name the group with (?P<name>...)",
            )


def _check_regex(pattern: str) -> str:
    compiled(pattern)
    return pattern


Regex = Annotated[str, StringConstraints(min_length=1), AfterValidator(_check_regex)]


class Rule(BaseModel):
    """Base of all tables."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=False)

    _line: int = PrivateAttr(default=0)

    @property
    def line(self) -> int:
        """The line on which the rule begins, 0 for one that was not loaded from a file."""
        return self._line

    def describe(self) -> str:
        """The rule in a few words, for messages."""
        return type(self).__name__.lower()


class Scoped(Rule):
    """A rule that may hold for some downstream paths only."""

    only: tuple[Glob, ...] = Field(default=(), description="Globs of downstream paths to which the rule is limited.")
    except_: tuple[Glob, ...] = Field(
        default=(), alias="except", description="Globs of downstream paths that the rule leaves alone."
    )

    @property
    def is_scoped(self) -> bool:
        """Whether the path matters at all."""
        return bool(self.only or self.except_)

    def holds_for(self, path: str) -> bool:
        """Whether the rule is in force for a downstream path."""
        if self.only and first_match(self.only, path) is None:
            return False
        return first_match(self.except_, path) is None
