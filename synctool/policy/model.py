"""The values of ``vime-sync.toml``. Frozen, checked on loading, and each knows the line it stands on.

One table a kind of rule: ``[[family]]`` and ``[[term]]`` (words), ``[[flag]]`` (command-line flags), ``[[protect]]`` (text that is never
translated), ``[[path]]`` (moves), ``[[owner]]`` (who decides about a path), ``[[exclude]]`` (upstream changes left out), ``[deleted]``
(what a missing file means), ``[[neutral]]`` and ``[[require]]`` (evidence), ``[[build_host]]`` (where candidates are built). ``only`` and ``except``
hold globs on *downstream* paths, as do the paths of ``[[owner]]`` and ``[[neutral]]``.

The rules themselves stand in ``word_rules``, ``path_rules`` and ``evidence_rules``; this is where they are imported from.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field, PrivateAttr

from synctool.policy.evidence_rules import BuildHost, EvidenceKind, Neutral, Require
from synctool.policy.globs import first_match
from synctool.policy.path_rules import Deleted, Exclude, Owner, OwnerKind, Ownership, PathRule
from synctool.policy.rule import Rule, Scoped, Sha, Text
from synctool.policy.word_rules import Family, Flag, Protect, Term, Translate

__all__ = [
    "BuildHost", "Deleted", "EvidenceKind", "Exclude", "Family", "Flag", "Neutral", "Owner", "OwnerKind", "Ownership", "PathRule", "Policy", "Protect",
    "Require", "Rule", "Scoped", "Side", "Term", "Translate", "Upstream", "json_schema",
]  # fmt: skip


class Side(Rule):
    """One of the two projects."""

    name: Text = Field(description="Short name, as it appears in messages.")
    url: Text | None = Field(default=None, description="Where the repository is.")
    branch: Text = Field(default="main", description="The branch that is followed.")


class Upstream(Side):
    """The project that is mirrored."""

    baseline: Sha | None = Field(default=None, description="The upstream commit that the fork began at.")


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
    build_hosts: tuple[BuildHost, ...] = Field(default=(), alias="build_host")

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
        for group in (*groups, self.neutrals, self.required, self.build_hosts):
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
