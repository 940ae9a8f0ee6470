"""Records and statements as values. Both are facts about one head and tree; both name whoever vouches for them; neither is ever changed.

A ``Record`` is something that ran (or was refused, or waits). A ``Statement`` is something a person says about the sync: what it depends on, what it
replaces, what was reviewed. Their id is a digest of their content, so that two clones can exchange them without a conflict.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from synctool.errors import ConfigError
from synctool.policy.model import EvidenceKind

SCHEMA = 1

Oid = Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{40}|[0-9a-f]{64})$")]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._:/+-]{0,79}$")]
Line = Annotated[str, StringConstraints(min_length=1, max_length=2000, strip_whitespace=True)]
Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]


class Outcome(StrEnum):
    """How it ended."""

    PASSED = "passed"
    FAILED = "failed"
    #: Ended by a person or by a newer run, before it could say anything.
    CANCELLED = "cancelled"
    #: The machine or its agent went away; the thing itself said nothing.
    LOST = "lost"
    #: A rule of ours forbade it, so it was not done.
    REFUSED = "refused"
    #: It has begun, or is known to be owed, and has not ended.
    PENDING = "pending"

    @property
    def decides(self) -> bool:
        """Whether it says something that replaces what an earlier run of the same name said."""
        return self in (Outcome.PASSED, Outcome.FAILED, Outcome.REFUSED)


class Source(StrEnum):
    """How the record came here."""

    #: ``vime-sync evidence run`` ran it.
    RUN = "run"
    #: Read from a file that a CI service or a test runner wrote.
    IMPORTED = "imported"
    #: A person saw it elsewhere and signed for it.
    ATTESTED = "attested"


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Artifact(_Value):
    """Something that a digest names, such as an image, a log or a result file."""

    name: Line
    digest: Digest


class Retry(_Value):
    """An attempt that was lost and made again."""

    what: Line
    exit_status: int | None = None
    reason: Line


class _Fact(_Value):
    """``when`` (UTC) is when it ended, or when it was said. ``by`` is ``Name <mail>`` of whoever recorded it.

    ``sync`` is the branch of the sync that it was recorded for: a later sync's body does not tell what an earlier one tried.
    """

    schema_: Literal[1] = Field(default=1, alias="schema")
    head: Oid | None = None
    tree: Oid | None = None
    sync: str = ""
    when: datetime.datetime
    by: Line

    def content(self) -> dict[str, Any]:
        """JSON values; what is empty is left out."""
        data = self.model_dump(mode="json", by_alias=True)
        return {key: value for key, value in data.items() if value not in (None, "", [], {})}

    def encode(self) -> bytes:
        """Canonical JSON: the same fact gives the same bytes."""
        return json.dumps(self.content(), sort_keys=True, ensure_ascii=False, indent=1).encode() + b"\n"

    @property
    def id(self) -> str:
        """First 12 hex digits of the SHA-256 of the canonical form."""
        return hashlib.sha256(self.encode()).hexdigest()[:12]

    def to_json(self) -> dict[str, Any]:
        """The content with its id, as verbs print it."""
        return {"id": self.id, **self.content()}


class Record(_Fact):
    """Something that ran on ``tree``. ``figures`` are counts; ``details`` are further facts in words; ``seconds`` is wall time.

    ``head`` or ``tree`` may be missing for an imported run of a commit that this repository does not have; it can then hold for nothing.
    """

    type: Literal["record"] = "record"
    name: Name
    kind: EvidenceKind
    outcome: Outcome
    source: Source
    command: tuple[str, ...] = ()
    exit_status: int | None = None
    seconds: float | None = None
    environment: dict[str, str] = {}
    figures: dict[str, int] = {}
    details: dict[str, str] = {}
    artifacts: tuple[Artifact, ...] = ()
    retries: tuple[Retry, ...] = ()
    #: Name of the run at a CI service, such as ``#1383``, and where it can be looked at.
    run: str = ""
    url: str = ""
    #: ``linux/amd64``, where it matters.
    platform: str = ""
    #: Digest of the patch stack (``synctool.patches.digest``) and the pinned release that it applies to.
    stack: str = ""
    pin: str = ""
    note: str = ""
    #: Last lines of the output, of a run that did not pass.
    tail: str = ""
    signed_off_by: str = ""

    @model_validator(mode="after")
    def _check(self) -> Record:
        if self.source is Source.ATTESTED and not self.signed_off_by:
            raise ValueError("what was seen elsewhere needs signed_off_by")
        if self.outcome is Outcome.REFUSED and not self.note:
            raise ValueError("a refusal needs its reason in 'note'")
        if self.outcome is Outcome.PASSED and any(self.figures.get(key) for key in ("failures", "errors")):
            raise ValueError("figures with failures can't have passed")
        return self


class Topic(StrEnum):
    """What a statement is about."""

    #: This pull request needs another one (``target``) first.
    DEPENDS_ON = "depends-on"
    #: Where a reviewer finds only what is new (``target``: a pull request or an address).
    REVIEW_AGAINST = "review-against"
    #: This pull request replaces another one (``target``).
    REPLACES_PR = "replaces-pr"
    #: Another pull request (``target``) replaces this one.
    REPLACED_BY_PR = "replaced-by-pr"
    #: A record (``target``, its id) does not count any more.
    WITHDRAWS = "withdraws"
    #: An upstream file or part (``target``) that was not mirrored.
    NOT_MIRRORED = "not-mirrored"
    #: What was reviewed, and what came of it.
    REVIEW = "review"
    #: Anything else that a reader should know.
    NOTE = "note"


NEEDS_TARGET = frozenset(Topic) - {Topic.REVIEW, Topic.NOTE}


class Statement(_Fact):
    """Something that a person says about the sync, signed off."""

    type: Literal["statement"] = "statement"
    topic: Topic
    target: str = ""
    text: Line
    signed_off_by: Line

    @model_validator(mode="after")
    def _check(self) -> Statement:
        if (self.topic in NEEDS_TARGET) != bool(self.target):
            raise ValueError(f"'{self.topic}' {'needs' if self.topic in NEEDS_TARGET else 'takes no'} target")
        return self


Fact = Record | Statement


def decode(data: bytes | str | dict[str, Any], where: str) -> Fact:
    """A record or statement from its JSON; an ``id`` that is there must be right.

    Raises:
        ConfigError: it is neither, or was changed after it was written.
    """
    try:
        value = json.loads(data) if isinstance(data, (bytes, str)) else dict(data)
        given = value.pop("id", None)
        kind = Statement if value.get("type") == "statement" else Record
        fact: Fact = kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"])) or "the record"
        raise ConfigError(f"{name}: {first['msg']}", where=where, hint="this is no evidence of schema 1") from None
    except (ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"not a record: {error}", where=where) from None
    if given is not None and given != fact.id:
        raise ConfigError(
            f"record {given} was changed: its content has the id {fact.id}",
            where=where,
            hint="take it from where it was recorded",
        )
    return fact


def now() -> datetime.datetime:
    """This moment in UTC. As fine as the clock is: of two records of one name the later one counts, also within a second."""
    return datetime.datetime.now(datetime.UTC)
