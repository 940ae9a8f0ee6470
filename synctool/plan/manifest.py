"""The manifest of one sync as a value, read from TOML with line-numbered errors. ``manifest_write`` makes and updates the text.

A manifest is the reviewable record: what was taken, what was left out and why, and which evidence belongs to it. People edit it; a later plan respects
that. An entry is *by hand* when its ``decision`` differs from ``planned`` (what vime-sync wrote) or when it says ``pinned = true``.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from synctool.errors import ConfigError
from synctool.git.repo import Repo
from synctool.git.tree import Tree
from synctool.plan.model import Decision, Kind
from synctool.policy.toml_lines import LineIndex
from synctool.textfile import read_text

FOLDER = "sync_manifests"
SCHEMA = 1

_SHA = re.compile(r"[0-9a-f]{7,64}")
_TEXT, _FLAG, _NUMBER, _TEXTS = "a text", "true or false", "a whole number", "a list of texts"
_TYPES: dict[str, Any] = {_TEXT: str, _FLAG: bool, _NUMBER: int, _TEXTS: list}

TOP: dict[str, str] = {
    "schema": _NUMBER,
    "upstream": _TEXT,
    "base": _TEXT,
    "base_from": _TEXT,
    "through": _TEXT,
    "downstream": _TEXT,
    "picks": _FLAG,
    "note": _TEXT,
}
#: Keys of the arrays of tables. An empty list marks keys of which one must be there.
TABLES: dict[str, dict[str, str]] = {
    "change": {
        "commit": _TEXT,
        "pr": _NUMBER,
        "pr_confidence": _TEXT,
        "subject": _TEXT,
        "decision": _TEXT,
        "planned": _TEXT,
        "pinned": _FLAG,
        "reason": _TEXT,
        "owner": _TEXT,
        "evidence": _TEXTS,
        "depends_on": _TEXTS,
        "mirrored": _TEXT,
        "note": _TEXT,
    },
    "port": {"commit": _TEXT, "pr": _NUMBER, "downstream": _TEXT, "paths": _TEXTS, "note": _TEXT},
    "evidence": {
        "name": _TEXT,
        "head": _TEXT,
        "tree": _TEXT,
        "command": _TEXT,
        "outcome": _TEXT,
        "record": _TEXT,
        "note": _TEXT,
    },
}
REQUIRED: dict[str, tuple[str, ...]] = {
    "": ("schema", "through"),
    "change": ("commit", "decision"),
    "port": ("downstream",),
    "evidence": ("name",),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One ``[[change]]``. ``mirrored`` is the downstream commit that brought it, once there is one."""

    commit: str
    decision: Kind
    planned: Kind | None = None
    pinned: bool = False
    pr: int | None = None
    reason: str = ""
    owner: str = ""
    mirrored: str = ""
    line: int = 0
    subject: str = ""

    @property
    def by_hand(self) -> bool:
        """Whether a person decided."""
        return self.pinned or self.planned is None or self.planned != self.decision

    def as_decision(self) -> Decision:
        """The decision that the person took."""
        return Decision(self.decision, self.reason, self.owner, by="manifest")


@dataclass(frozen=True, slots=True)
class Port:
    """One ``[[port]]``: downstream commit ``downstream`` carries the upstream change by other means. Empty ``paths`` means all of it."""

    downstream: str
    commit: str = ""
    pr: int | None = None
    paths: tuple[str, ...] = ()
    note: str = ""
    line: int = 0

    def names(self, oid: str, number: int | None) -> bool:
        """Whether this is about the upstream change."""
        return (bool(self.commit) and oid.startswith(self.commit)) or (self.pr is not None and self.pr == number)


@dataclass(frozen=True)
class Manifest:
    """A manifest, with the file that it came from (for messages). ``picks`` marks one of single changes, which is no resume point."""

    file: str
    through: str
    base: str | None = None
    downstream: str | None = None
    picks: bool = False
    entries: tuple[Entry, ...] = ()
    ports: tuple[Port, ...] = ()
    by_commit: Mapping[str, Entry] = field(default_factory=dict)

    def entry(self, oid: str) -> Entry | None:
        """The entry of an upstream commit (entries may hold short ids)."""
        found = self.by_commit.get(oid)
        if found is None:
            found = next((e for e in self.entries if len(e.commit) < len(oid) and oid.startswith(e.commit)), None)
        return found

    def where(self, line: int) -> str:
        """``file:line``."""
        return f"{self.file}:{line}"


def manifest_name(base: str | None, through: str, *, picks: bool = False) -> str:
    """The file name for a range, such as ``44d29ee59..a897e1f40.toml``, or for single changes, by the newest of them."""
    return f"{'picks' if picks else base[:9] if base else 'start'}..{through[:9]}.toml"


def read_manifest(path: Path, shown: str | None = None) -> Manifest:
    """A manifest from a file; ``shown`` is its name in messages.

    Raises:
        ConfigError: it can't be read, or as ``parse_manifest``.
    """
    return parse_manifest(read_text(path, "manifest", shown), shown or str(path))


def parse_manifest(text: str, file: str) -> Manifest:
    """A manifest from TOML text.

    Raises:
        ConfigError: it is no TOML, has an unknown key, a wrong type or a decision without its reason; ``where`` is file:line.
    """
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"at line (\d+)", str(error))
        line = int(found[1]) if found else text.count("\n") + 1
        raise ConfigError(f"not valid TOML: {error}", where=f"{file}:{line}") from None
    index = LineIndex(text.replace("\r\n", "\n"))
    _check(raw, index, file)
    entries = tuple(_entry(table, index.line(("change", n)), file) for n, table in enumerate(raw.get("change", ())))
    ports = tuple(_port(table, index.line(("port", n)), file) for n, table in enumerate(raw.get("port", ())))
    by_commit: dict[str, Entry] = {}
    for entry in entries:
        if entry.commit in by_commit:
            first = by_commit[entry.commit].line
            raise ConfigError(
                f"{entry.commit[:9]} is listed twice",
                where=f"{file}:{entry.line}",
                hint=f"the first is on line {first}: keep one",
            )
        by_commit[entry.commit] = entry
    ends = raw["through"], raw.get("base") or None, raw.get("downstream")
    return Manifest(file, *ends, raw.get("picks", False), entries, ports, by_commit)


def _check(raw: dict[str, Any], index: LineIndex, file: str) -> None:
    _check_table(raw, TOP, (), "", index, file)
    if raw["schema"] != SCHEMA:
        line = index.line(("schema",))
        raise ConfigError(
            f"manifest schema {raw['schema']} is not known",
            where=f"{file}:{line}",
            hint=f"this version writes schema {SCHEMA}",
        )
    for name, keys in TABLES.items():
        tables = raw.get(name, [])
        if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
            raise ConfigError(
                f"'{name}' must be an array of tables",
                where=f"{file}:{index.line((name,))}",
                hint=f"write each as [[{name}]]",
            )
        for number, table in enumerate(tables):
            _check_table(table, keys, (name, number), name, index, file)


def _check_table(
    table: dict[str, Any], keys: dict[str, str], place: tuple[str | int, ...], name: str, index: LineIndex, file: str
) -> None:
    title = f"[[{name}]] #{int(place[1]) + 1}" if place else "the manifest"
    for key, value in table.items():
        if not place and key in TABLES:
            continue
        where = f"{file}:{index.line((*place, key))}"
        if key not in keys:
            import difflib

            near = difflib.get_close_matches(key, keys, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"known keys: {', '.join(keys)}"
            raise ConfigError(f"{title} has an unknown key '{key}'", where=where, hint=hint)
        wanted = keys[key]
        right = type(value) is _TYPES[wanted] and (wanted is not _TEXTS or all(isinstance(v, str) for v in value))
        if not right:
            raise ConfigError(f"{title}: '{key}' must be {wanted}", where=where, hint=f"it is {value!r} now")
    for key in REQUIRED[name]:
        if key not in table:
            raise ConfigError(f"{title} needs '{key}'", where=f"{file}:{index.line(place)}", hint=f"add {key} = ...")


def _kind(text: str, title: str, where: str) -> Kind:
    try:
        return Kind(text)
    except ValueError:
        raise ConfigError(f"{title} can't be {text!r}", where=where, hint=f"use {', '.join(Kind)}") from None


def _sha(text: str, what: str, where: str) -> str:
    if not _SHA.fullmatch(text):
        raise ConfigError(
            f"{what} is not a commit id: {text!r}", where=where, hint="give 7 to 64 lower-case hexadecimal digits"
        )
    return text


def _entry(table: dict[str, Any], line: int, file: str) -> Entry:
    where = f"{file}:{line}"
    decision = _kind(table["decision"], "a decision", where)
    planned = _kind(table["planned"], "'planned'", where) if "planned" in table else None
    entry = Entry(
        _sha(table["commit"], "'commit'", where),
        decision,
        planned,
        table.get("pinned", False),
        table.get("pr"),
        table.get("reason", "").strip(),
        table.get("owner", "").strip(),
        table.get("mirrored", ""),
        line,
        table.get("subject", ""),
    )
    if entry.by_hand and decision is not Kind.TAKE and not entry.reason:
        raise ConfigError(
            f"{entry.commit[:9]} is set to '{decision}' without a reason",
            where=where,
            hint="add reason = 'why, for whoever asks later'",
        )
    if entry.by_hand and decision is Kind.EXCLUDE and not entry.owner:
        raise ConfigError(
            f"{entry.commit[:9]} is excluded without an owner", where=where, hint="add owner = 'who answers for it'"
        )
    if decision is Kind.COLLAPSED and planned is not Kind.COLLAPSED:
        raise ConfigError(
            "only vime-sync collapses a revert pair",
            where=where,
            hint="use decision = 'exclude' for both changes, with a reason",
        )
    return entry


def _port(table: dict[str, Any], line: int, file: str) -> Port:
    where = f"{file}:{line}"
    if ("commit" in table) == ("pr" in table):
        raise ConfigError(
            "a port names its upstream change by either 'commit' or 'pr'", where=where, hint="keep one of the two"
        )
    commit = _sha(table["commit"], "'commit'", where) if "commit" in table else ""
    downstream = _sha(table["downstream"], "'downstream'", where)
    return Port(downstream, commit, table.get("pr"), tuple(table.get("paths", ())), table.get("note", ""), line)


def recorded_manifests(repo: Repo, tree: Tree) -> Iterator[Manifest]:
    """The manifests that a downstream commit contains, by name. Files in subfolders (policies of other forks) are not manifests of this one.

    Raises:
        ConfigError: one of them is wrong.
    """
    for path, entry in tree.items(FOLDER):
        if path.count("/") == 1 and PurePosixPath(path).suffix == ".toml" and ".." in path:
            yield parse_manifest(repo.objects.read(entry.oid, "blob").decode("utf-8", "replace"), path)
