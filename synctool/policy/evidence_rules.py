"""Rules about evidence and candidates: ``[[neutral]]``, ``[[require]]`` and ``[[build_host]]``."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from synctool.policy.globs import Glob
from synctool.policy.rule import Reason, Rule, Text


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


class BuildHost(Rule):
    """A machine on which candidates of a platform may be built, and the route to it. The route is what ssh would really take (``ssh -G``)."""

    host: Text = Field(description="The name that ssh is given, such as an alias of its configuration.")
    platform: Text = Field(description="What is built there, such as linux/arm64.")
    names: Annotated[tuple[Text, ...], Field(min_length=1)] = Field(
        description="The host names (ssh's HostName) that it may turn out to be."
    )
    jumps: tuple[Text, ...] = Field(
        default=(), description="Jump hosts (ProxyJump) that the route may use. By default none: a jump is refused."
    )
    reason: Reason = Field(description="Why there, for whoever asks later.")

    def describe(self) -> str:
        return f"build host {self.host}"
