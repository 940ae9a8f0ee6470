"""The values of ``vime-sync.toml``. Frozen, checked on loading, and each knows the line it stands on.

One table a kind of rule: ``[[family]]`` and ``[[term]]`` (words), ``[[flag]]`` (command-line flags), ``[[protect]]`` (text that is never
translated), ``[[path]]`` (moves), ``[[owner]]`` (who decides about a path), ``[[exclude]]`` (upstream changes left out), ``[deleted]``
(what a missing file means), ``[[neutral]]`` and ``[[require]]`` (evidence). ``only`` and ``except`` hold globs on *downstream* paths, as do the paths of
``[[owner]]`` and ``[[neutral]]``.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    StringConstraints,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from synctool.policy.globs import Glob, first_match

SCHEMA = 1

Text = Annotated[str, StringConstraints(min_length=1)]
Reason = Annotated[str, StringConstraints(min_length=3, strip_whitespace=True)]
Sha = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{7,64}$")]


def _wrong(message: str, hint: str) -> PydanticCustomError:
    # The text goes in as a value: pydantic would read braces of a user's regex as fields of a template.
    return PydanticCustomError("policy", "{text}", {"text": message, "hint": hint})


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern, re.MULTILINE)
    except re.error as error:
        raise _wrong(
            f"regex does not compile: {error}", "escape special characters with a backslash, in a '''literal string'''"
        ) from None
    if compiled.match(""):
        raise _wrong("regex matches the empty text", "make at least one part of it mandatory")
    return compiled


def _check_template(pattern: re.Pattern[str], template: str) -> None:
    for number, name in re.findall(r"\\(?:(\d+)|g<(\w+)>)", template):
        wanted = number or name
        known = int(wanted) <= pattern.groups if wanted.isdigit() else wanted in pattern.groupindex
        if not known:
            raise _wrong(
                f"'to' names the group {wanted}, which the regex does not have",
                "count the parentheses of the regex, or name the group with (?P<name>...)",
            )


def _check_regex(pattern: str) -> str:
    _compile(pattern)
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


class Side(Rule):
    """One of the two projects."""

    name: Text = Field(description="Short name, as it appears in messages.")
    url: Text | None = Field(default=None, description="Where the repository is.")
    branch: Text = Field(default="main", description="The branch that is followed.")


class Upstream(Side):
    """The project that is mirrored."""

    baseline: Sha | None = Field(default=None, description="The upstream commit that the fork began at.")


class Family(Scoped):
    """One word in all its spellings, from one entry."""

    from_: Text = Field(alias="from", description="Upstream's word, as it is written in prose.")
    to: Text = Field(description="Downstream's word, as it is written in prose.")
    identifier: Text | None = Field(
        default=None,
        description="Downstream's word inside an identifier, such as the VLLM of VLLMEngine. Learned from 'to' by default.",
    )
    forms: dict[Text, Text] = Field(
        default_factory=dict, description="Spellings that differ from the derived ones, or further ones."
    )
    omit: tuple[Text, ...] = Field(default=(), description="Derived spellings that are not to be translated.")
    paths: bool = Field(default=True, description="Whether the words are also replaced in paths.")
    reason: str | None = None

    def describe(self) -> str:
        return f"family {self.from_} -> {self.to}"


class Term(Scoped):
    """One literal text or one regex."""

    from_: Text | None = Field(default=None, alias="from", description="A literal text.")
    regex: Regex | None = Field(default=None, description="A Python regex, in multi-line mode.")
    to: str = Field(description="The replacement; for a regex it may name groups, as \\1 or \\g<name>.")
    word: bool = Field(
        default=False, description="For a literal: only where no letter, digit or underscore touches it."
    )
    paths: bool = Field(default=False, description="Whether it is also replaced in paths.")
    reason: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Term:
        if (self.from_ is None) == (self.regex is None):
            raise _wrong("a term needs either 'from' or 'regex'", "keep one of the two")
        if self.regex is not None:
            _check_template(_compile(self.regex), self.to)
            if self.word:
                raise _wrong("'word' is for literal terms", "write \\b in the regex")
        return self

    def describe(self) -> str:
        return f"term {self.from_ or self.regex} -> {self.to}"


class Flag(Scoped):
    """A command-line flag, with the attribute it gives."""

    from_: Text = Field(alias="from", description="Upstream's flag with its dashes.")
    to: Text | None = Field(default=None, description="Downstream's flag with its dashes.")
    report: Reason | None = Field(
        default=None, description="Why there is no single target: the flag is reported, not translated."
    )
    attribute: bool = Field(
        default=True,
        description="Whether the attribute (sglang_dp_size) is mapped too, rather than left to the families.",
    )
    bare: bool = Field(
        default=False, description="Whether the forms without the engine's prefix are mapped too (dp-size, dp_size)."
    )

    @field_validator("from_", "to")
    @classmethod
    def _is_flag(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"--[a-z0-9]+(?:-[a-z0-9]+)*", value):
            raise _wrong(f"'{value}' is not a long flag", "write it as on the command line, such as '--sglang-dp-size'")
        return value

    @model_validator(mode="after")
    def _check(self) -> Flag:
        if (self.to is None) == (self.report is None):
            raise _wrong(
                "a flag needs either 'to' or 'report'",
                "give its downstream name in 'to', or say in 'report' why there is none",
            )
        return self

    def describe(self) -> str:
        return f"flag {self.from_} -> {self.to}" if self.to else f"flag {self.from_}: {self.report}"


class Protect(Scoped):
    """Text that is never translated and never counted as residue."""

    name: Text = Field(description="What is protected, in a few words.")
    regex: Regex | None = Field(
        default=None, description="A Python regex, in multi-line mode; all that it matches is protected."
    )
    text: Text | None = Field(default=None, description="A literal text.")

    @model_validator(mode="after")
    def _check(self) -> Protect:
        if (self.text is None) == (self.regex is None):
            raise _wrong("a protected span needs either 'text' or 'regex'", "keep one of the two")
        return self

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """What finds the spans."""
        return re.compile(self.regex if self.regex is not None else re.escape(self.text or ""), re.MULTILINE)

    def describe(self) -> str:
        return f"protect {self.name}"


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
            raise _wrong(
                f"'{value}' leaves the tree",
                "write the path from the root of the tree, without '.', '..' or a leading '/'",
            )
        return value

    @model_validator(mode="after")
    def _check(self) -> PathRule:
        if (self.from_ is None) == (self.regex is None):
            raise _wrong("a path rule needs either 'from' or 'regex'", "keep one of the two")
        if self.regex is not None:
            _check_template(_compile(self.regex), self.to)
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
            raise _wrong("an exclusion needs either 'pr' or 'commit'", "keep one of the two")
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


class Translate(Rule):
    """Settings of the translation as a whole."""

    skip: tuple[Glob, ...] = Field(default=(), description="Downstream paths whose content is never translated.")
    unmapped_flags: Literal["keep", "family"] = Field(
        default="keep",
        description="How a flag with 'report' is spelled: as upstream wrote it, or through the families.",
    )
    residue: tuple[Regex, ...] = Field(
        default=(), description="Regexes of further upstream words that must not be left over."
    )


class EvidenceKind(StrEnum):
    """What a piece of evidence is about."""

    TEST = "test"
    LINT = "lint"
    PATCHES = "patches"
    AUDIT = "audit"
    IMAGE = "image"
    E2E = "e2e"
    CI = "ci"


class Neutral(Rule):
    """Paths that certain kinds of evidence do not depend on: a change there narrows such evidence, where any other makes it stale."""

    paths: Annotated[tuple[Glob, ...], Field(min_length=1)] = Field(description="Globs of downstream paths.")
    kinds: tuple[EvidenceKind, ...] = Field(
        default=(EvidenceKind.TEST, EvidenceKind.PATCHES, EvidenceKind.IMAGE, EvidenceKind.E2E),
        description="The kinds of evidence that do not depend on them.",
    )
    reason: Reason = Field(description="Why they can't change what was seen.")

    def describe(self) -> str:
        return f"neutral {', '.join(self.paths)}"


class Require(Rule):
    """Evidence without which a sync is not done: it is told as pending until a green record of that name holds."""

    name: Text = Field(description="The name that its records carry.")
    reason: Reason = Field(description="What it shows.")

    def describe(self) -> str:
        return f"require {self.name}"


class Ownership(NamedTuple):
    """Who decides about one path, and by which rule (``rule`` is a glob or "default", ``where`` is file:line)."""

    kind: OwnerKind
    rule: str
    reason: str
    where: str


class Policy(Rule):
    """The whole file."""

    schema_: Literal[1] = Field(alias="schema", description="Version of this format.")
    upstream: Upstream
    downstream: Side
    translate: Translate = Translate()
    families: tuple[Family, ...] = Field(default=(), alias="family")
    terms: tuple[Term, ...] = Field(default=(), alias="term")
    flags: tuple[Flag, ...] = Field(default=(), alias="flag")
    protected: tuple[Protect, ...] = Field(default=(), alias="protect")
    paths: tuple[PathRule, ...] = Field(default=(), alias="path")
    owners: tuple[Owner, ...] = Field(default=(), alias="owner")
    exclusions: tuple[Exclude, ...] = Field(default=(), alias="exclude")
    deleted: Deleted = Deleted()
    neutrals: tuple[Neutral, ...] = Field(default=(), alias="neutral")
    required: tuple[Require, ...] = Field(default=(), alias="require")

    _file: str = PrivateAttr(default="vime-sync.toml")
    _owners: dict[str, Ownership] = PrivateAttr(default_factory=dict)

    @property
    def file(self) -> str:
        """The file it was loaded from, as the user named it."""
        return self._file

    def where(self, rule: Rule) -> str:
        """``file:line`` of a rule."""
        return f"{self._file}:{rule.line}"

    def rules(self) -> Iterator[Rule]:
        """All rules of all tables, in the order of the tables above."""
        groups = (self.families, self.terms, self.flags, self.protected, self.paths, self.owners, self.exclusions)
        for group in (*groups, self.neutrals, self.required):
            yield from group

    def owner_of(self, path: str) -> Ownership:
        """Who decides about a downstream path: the last matching ``[[owner]]`` rule, else ``mirror``."""
        known = self._owners.get(path)
        if known is None:
            known = self._owners[path] = self._find_owner(path)
        return known

    def _find_owner(self, path: str) -> Ownership:
        for rule in reversed(self.owners):
            glob = first_match(rule.paths, path)
            if glob is not None:
                return Ownership(rule.owner, glob, rule.reason, self.where(rule))
        return Ownership(OwnerKind.MIRROR, "default", "no owner rule matches: paths are mirrored", self._file)

    def exclusion_of(self, *, pr: int | None = None, commit: str | None = None, today: datetime.date) -> Exclude | None:
        """The exclusion that holds today for an upstream change. An expired one does not hold (``policy check`` reports it)."""
        return next((rule for rule in self.exclusions if rule.names(pr=pr, commit=commit) and rule.active(today)), None)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of ``vime-sync.toml``."""
    return Policy.model_json_schema(by_alias=True)
