"""The baseline: findings that a person accepted, each with a reason and an owner, and facts that the trees do not show.

::

    schema = 1

    [[accept]]
    rule = "docs-parity"
    subject = "docs/*/examples/page.md"   # a glob; left out, any subject
    paths = ["docs/zh/"]                  # globs of paths; left out, any path
    match = "section '.*'"                # a regex searched for in the message; left out, any message
    reason = "the page is about a machine that ..."
    owner = "docs"
    expires = 2027-01-01                  # optional: from that day on it is told again

    [[served]]
    routes = ["/workers"]
    by = "the router"
"""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator

from synctool.audit.context import Served
from synctool.audit.finding import Finding, Hit
from synctool.errors import ConfigError
from synctool.policy.globs import Glob, first_match

SCHEMA = 1

Reason = Annotated[str, StringConstraints(min_length=3, strip_whitespace=True)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Accept(_Part):
    """One ``[[accept]]`` table."""

    rule: str
    subject: str | None = None
    paths: tuple[Glob, ...] = ()
    match: str | None = None
    reason: Reason
    owner: Annotated[str, StringConstraints(min_length=1)]
    expires: datetime.date | None = None

    @field_validator("match")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"regex does not compile: {error}") from None
        return value

    def covers(self, hit: Hit, today: datetime.date) -> bool:
        """Whether the entry accepts a place."""
        return (
            hit.rule.id == self.rule
            and (self.expires is None or today < self.expires)
            and (self.subject is None or fnmatchcase(hit.subject, self.subject) or hit.subject == self.subject)
            and (not self.paths or first_match(self.paths, hit.path) is not None)
            and (self.match is None or re.search(self.match, hit.message) is not None)
        )

    def describe(self) -> str:
        """The entry in a few words."""
        about = self.subject or ", ".join(map(str, self.paths)) or self.match or "everything"
        return f"{self.rule}: {about}"


class ServedEntry(_Part):
    """One ``[[served]]`` table."""

    routes: Annotated[tuple[str, ...], Field(min_length=1)]
    by: Reason


class _File(_Part):
    schema_: int = Field(alias="schema")
    accept: tuple[Accept, ...] = ()
    served: tuple[ServedEntry, ...] = ()


@dataclass(frozen=True)
class Baseline:
    """A loaded baseline. ``where`` names it in messages."""

    accepted: tuple[Accept, ...] = ()
    served: tuple[Served, ...] = ()
    where: str = ""
    today: datetime.date = field(default_factory=datetime.date.today)

    def divide(self, hits: Iterable[Hit], rules: set[str]) -> tuple[list[Hit], list[Hit], list[str]]:
        """Places that are left, places that are accepted, and entries (of rules that ran) that accept nothing."""
        kept, accepted, used = [], [], set()
        for hit in hits:
            entry = next((n for n, e in enumerate(self.accepted) if e.covers(hit, self.today)), None)
            if entry is None:
                kept.append(hit)
            else:
                accepted.append(hit)
                used.add(entry)
        unused = [e.describe() for n, e in enumerate(self.accepted) if n not in used and e.rule in rules]
        return kept, accepted, unused


def load_baseline(path: Path) -> Baseline:
    """Read a baseline.

    Raises:
        ConfigError: it is missing, not TOML, or a field is wrong; ``where`` names file and line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"can't read the baseline: {error}",
            where=str(path),
            hint="'vime-sync audit --accept REASON --baseline FILE' writes one",
        ) from None
    try:
        raw: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"line (\d+)", str(error))
        raise ConfigError(f"not TOML: {error}", where=f"{path}:{line[1] if line else 1}") from None
    try:
        file = _File.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        place = first["loc"]
        line_number = _line(text, place)
        name = ".".join(str(part) for part in place if not isinstance(part, int))
        raise ConfigError(
            f"{name}: {first['msg']}", where=f"{path}:{line_number}", hint="an entry needs rule, reason and owner"
        ) from None
    if file.schema_ != SCHEMA:
        raise ConfigError(
            f"schema {file.schema_} is not known", where=f"{path}:1", hint=f"this version reads schema {SCHEMA}"
        )
    return Baseline(file.accept, tuple(Served(s.routes, s.by) for s in file.served), str(path))


def _line(text: str, place: tuple[int | str, ...]) -> int:
    """The line of the n-th table of a kind."""
    if len(place) < 2 or not isinstance(place[1], int):
        return 1
    heads = [
        n for n, line in enumerate(text.split("\n"), 1) if re.match(rf"\s*\[\[{re.escape(str(place[0]))}\]\]", line)
    ]
    return heads[place[1]] if place[1] < len(heads) else 1


def with_accepted(text: str, findings: Iterable[Finding], *, reason: str, owner: str) -> str:
    """The text of a baseline with entries for findings added at its end; what stands there is kept as it is."""
    import tomlkit

    document = tomlkit.parse(text) if text.strip() else tomlkit.document()
    if "schema" not in document:
        document.add("schema", SCHEMA)
    tables = document.get("accept")
    if tables is None:
        tables = tomlkit.aot()
        document.add("accept", tables)
    for finding in findings:
        table = tomlkit.table()
        table.add("rule", finding.rule.id)
        table.add("subject", finding.subject)
        paths = sorted({hit.path for hit in finding.hits if hit.path})
        if paths:
            table.add("paths", [f"/{path}" for path in paths])
        table.add("reason", reason)
        table.add("owner", owner)
        tables.append(table)
    return tomlkit.dumps(document)
