"""Rules about words: ``[[family]]``, ``[[term]]``, ``[[flag]]``, ``[[protect]]`` and the settings of ``[translate]``."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Literal

from pydantic import Field, field_validator, model_validator

from synctool.policy.globs import Glob
from synctool.policy.rule import Reason, Regex, Rule, Scoped, Text, check_template, compiled, wrong


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
            raise wrong("a term needs either 'from' or 'regex'", "keep one of the two")
        if self.regex is not None:
            check_template(compiled(self.regex), self.to)
            if self.word:
                raise wrong("'word' is for literal terms", "write \\b in the regex")
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
            raise wrong(f"'{value}' is not a long flag", "write it as on the command line, such as '--sglang-dp-size'")
        return value

    @model_validator(mode="after")
    def _check(self) -> Flag:
        if (self.to is None) == (self.report is None):
            raise wrong(
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
            raise wrong("a protected span needs either 'text' or 'regex'", "keep one of the two")
        return self

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """What finds the spans."""
        return re.compile(self.regex if self.regex is not None else re.escape(self.text or ""), re.MULTILINE)

    def describe(self) -> str:
        return f"protect {self.name}"


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
