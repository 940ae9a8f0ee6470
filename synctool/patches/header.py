"""Patch headers in DEP-3 form: parse, lint, write. The bytes of a header that nobody edits are kept as they are.

DEP-3 (patch tagging guidelines of Debian): ``Field: value`` lines, continued by lines that start with a blank, in one or more paragraphs before
the diff, ended by a ``---`` line. ``Upstream-Status`` follows Yocto's closed set. Three fields are this project's: ``Removal-Condition`` (when
the patch can go), ``Regression-Test`` (``file::test`` that fails without it) and ``Context-Waiver`` (``N; reason``: fuzz allowed down to N lines of
context).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from synctool.errors import ConfigError

#: state -> whether it needs a word in brackets, and which.
UPSTREAM_STATES: dict[str, str | None] = {
    "Pending": None,
    "Submitted": "where",
    "Backport": "the upstream commit or pull request",
    "Landed": "the first release with it",
    "Inappropriate": "the reason",
}

_FIELD = re.compile(r"([A-Za-z][A-Za-z0-9-]*):(?:[ \t]+(.*))?$")
_STATUS = re.compile(r"([A-Za-z-]+)(?:\s+\[(.+)\])?$", re.S)
_WAIVER = re.compile(r"(\d+)\s*;\s*(\S.*)$", re.S)


@dataclass(frozen=True, slots=True)
class HeaderField:
    """One field: its name as written, value (continuation lines joined by newlines, their indent removed) and 1-based line."""

    name: str
    value: str
    line: int


@dataclass(frozen=True, slots=True)
class Header:
    """The parsed header. Look-ups ignore case; the raw text stands beside for rewriting."""

    fields: tuple[HeaderField, ...]
    #: Lines that belong to no field (free text of a plain patch), with their numbers.
    loose: tuple[tuple[int, str], ...] = ()

    def get(self, *names: str) -> str | None:
        """The value of the first field with one of the names, or None."""
        for name in names:
            for field in self.fields:
                if field.name.lower() == name.lower():
                    return field.value
        return None

    def line(self, *names: str) -> int:
        """The line of that field, 1 when it is absent."""
        wanted = {name.lower() for name in names}
        return next((f.line for f in self.fields if f.name.lower() in wanted), 1)

    @property
    def subject(self) -> str:
        """The first line of the description."""
        return (self.get("Description", "Subject") or "").partition("\n")[0].strip()

    @property
    def upstream(self) -> tuple[str, str] | None:
        """``(state, what stands in brackets)`` of ``Upstream-Status``, or None when absent or malformed."""
        found = _STATUS.match((self.get("Upstream-Status") or "").strip())
        if not found or found[1] not in UPSTREAM_STATES:
            return None
        return found[1], (found[2] or "").strip()

    @property
    def drop_at_next_pin(self) -> bool:
        """Whether ``patch drop --at-next-pin`` marked it."""
        return (self.get("Drop-At-Next-Pin") or "").strip().lower() not in ("", "no", "false")


def parse_header(raw: bytes) -> Header:
    """Read a header. Never fails: what is not a field is kept as loose text, and ``lint_header`` judges."""
    fields: list[HeaderField] = []
    loose: list[tuple[int, str]] = []
    open_field = False
    for number, line in enumerate(raw.decode("utf-8", "surrogateescape").split("\n"), 1):
        line = line.rstrip("\r")
        found = _FIELD.match(line)
        if found and not line.startswith((" ", "\t")):
            fields.append(HeaderField(found[1], (found[2] or "").strip(), number))
            open_field = True
        elif line.startswith((" ", "\t")) and open_field:
            # A line with a single dot is DEP-3's blank line within a value.
            text = line.strip()
            last = fields[-1]
            fields[-1] = HeaderField(last.name, f"{last.value}\n{'' if text == '.' else text}".lstrip("\n"), last.line)
        else:
            open_field = False
            if line.strip() and line.strip() != "---":
                loose.append((number, line))
    return Header(tuple(fields), tuple(loose))


def render_header(fields: Iterable[tuple[str, str]]) -> bytes:
    """A header from ``(name, value)`` pairs, ended by ``---``. Inverse of ``parse_header``."""
    lines = []
    for name, value in fields:
        first, *rest = value.split("\n")
        lines.append(f"{name}: {first}".rstrip())
        lines += [f" {text}" if text.strip() else " ." for text in rest]
    return ("\n".join(lines) + "\n---\n").encode("utf-8", "surrogateescape")


def set_field(raw: bytes, name: str, value: str | None) -> bytes:
    """The header with one field set (or removed, for None), all other bytes unchanged. A new field goes after the last one."""
    header = parse_header(raw)
    lines = raw.decode("utf-8", "surrogateescape").split("\n")
    found = next((f for f in header.fields if f.name.lower() == name.lower()), None)
    text = (
        []
        if value is None
        else render_header([(found.name if found else name, value)]).decode("utf-8", "surrogateescape").split("\n")[:-2]
    )
    if found:
        start = found.line - 1
        end = start + 1
        while end < len(lines) and lines[end].startswith((" ", "\t")):
            end += 1
        lines[start:end] = text
    elif text:
        at = 0
        if header.fields:
            at = header.fields[-1].line
            while at < len(lines) and lines[at].startswith((" ", "\t")):
                at += 1
        lines[at:at] = text if header.fields else [*text, "---"]
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def keep_context(header: Header, where: str) -> int | None:
    """The context lines that must still match, from a recorded waiver; None when there is none.

    Raises:
        ConfigError: the waiver gives no number or no reason.
    """
    text = header.get("Context-Waiver")
    if text is None:
        return None
    found = _WAIVER.match(text.strip())
    if found is None:
        raise ConfigError(
            "Context-Waiver needs a number and a reason",
            where=f"{where}:{header.line('Context-Waiver')}",
            hint="write 'Context-Waiver: 2; why two lines of context are enough here'",
        )
    return int(found[1])


@dataclass(frozen=True, slots=True)
class Finding:
    """One lint finding: where (``file:line``), what is wrong and what to do."""

    where: str
    rule: str
    message: str
    fix: str


def lint_header(header: Header, name: str) -> list[Finding]:
    """What a header lacks or has wrong. Every finding says how to cure it."""
    found: list[Finding] = []

    def report(line: int, rule: str, message: str, fix: str) -> None:
        found.append(Finding(f"{name}:{line}", rule, message, fix))

    seen: dict[str, int] = {}
    for field in header.fields:
        key = field.name.lower()
        if key in seen and key not in (
            "bug",
            "reviewed-by",
            "acked-by",
            "signed-off-by",
            "author",
            "regression-test",
            "origin",
            "forwarded",
        ):
            report(field.line, "field-twice", f"{field.name} stands twice (line {seen[key]})", "keep one")
        seen.setdefault(key, field.line)
    if not header.subject:
        report(1, "description", "no Description", "add 'Description: what the patch does, in one line'")
    if header.get("Origin") is None and header.get("Forwarded") is None:
        report(
            1,
            "origin",
            "neither Origin nor Forwarded",
            "add 'Forwarded: URL of the upstream pull request', or 'Forwarded: not-needed' with 'Origin: vendor'",
        )
    status = header.get("Upstream-Status")
    states = ", ".join(UPSTREAM_STATES)
    if status is None:
        report(1, "upstream-status", "no Upstream-Status", f"add one of: {states}")
    elif header.upstream is None:
        report(
            header.line("Upstream-Status"),
            "upstream-status",
            f"Upstream-Status {status.split()[0] if status else ''!r} is not in the closed set",
            f"use one of: {states}",
        )
    else:
        state, word = header.upstream
        needed = UPSTREAM_STATES[state]
        if needed and not word:
            report(
                header.line("Upstream-Status"),
                "upstream-status",
                f"{state} without its bracket",
                f"write '{state} [{needed}]'",
            )
    if not header.get("Removal-Condition"):
        report(
            1,
            "removal",
            "no Removal-Condition",
            "say when the patch can go, for example 'Removal-Condition: the pin contains vllm#12345'",
        )
    tests = [f for f in header.fields if f.name.lower() == "regression-test"]
    if not tests:
        report(
            1,
            "regression-test",
            "no Regression-Test",
            "name the test that fails without the patch: 'Regression-Test: tests/path/test_x.py::test_y'",
        )
    for field in tests:
        for word in field.value.split():
            if not re.fullmatch(r"[\w./-]+\.py(::[\w\[\]-]+)*", word):
                report(field.line, "regression-test", f"{word!r} is not a test", "write 'file.py::test'")
    if header.get("Context-Waiver") is not None and not _WAIVER.match((header.get("Context-Waiver") or "").strip()):
        report(
            header.line("Context-Waiver"),
            "waiver",
            "Context-Waiver needs a number and a reason",
            "write 'Context-Waiver: 2; reason'",
        )
    return found
