"""Writes manifests: a new one from a plan, or an existing one brought up to date with every comment and hand edit kept.

An update touches only what vime-sync wrote itself: a decision that no person changed (with its reason and owner), the evidence and dependencies found,
and entries of changes that are new in the range. What is unchanged stays byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from synctool.plan.manifest import SCHEMA, Entry, parse_manifest
from synctool.plan.model import Plan, PlannedChange

if TYPE_CHECKING:
    from tomlkit.items import Table

HEADER = """\
# Made by 'vime-sync plan'. Edit it: change 'decision' (take, exclude, present, defer) and give 'reason' and 'owner'; later runs keep what you set.
# 'planned' is what vime-sync found; while it differs from 'decision', yours holds. 'pinned = true' holds a decision that is equal to it.
# Comments and [[evidence]], [[port]] and 'note' entries are yours.
"""


def new_manifest(plan: Plan, upstream: str = "") -> str:
    """The text of a new manifest."""
    import tomlkit

    document = tomlkit.document()
    document.add("schema", SCHEMA)
    if upstream:
        document.add("upstream", upstream)
    if plan.base is not None:
        document.add("base", plan.base)
    if plan.base_from:
        document.add("base_from", plan.base_from)
    document.add("through", plan.through)
    if plan.downstream is not None:
        document.add("downstream", plan.downstream)
    if plan.picks:
        document.add("picks", True)
    return HEADER + tomlkit.dumps(document) + "".join(_change_text(item) for item in plan.items)


def _change_text(item: PlannedChange) -> str:
    import tomlkit

    table = tomlkit.table()
    for key, value in _values(item).items():
        table.add(key, _toml(value))
    return "\n[[change]]\n" + table.as_string()


def _toml(value: Any) -> Any:
    import tomlkit

    if isinstance(value, list):
        texts = tomlkit.array()
        texts.extend(value)
        return texts.multiline(len(value) > 1)
    return tomlkit.item(_clean(value) if isinstance(value, str) else value)


def _clean(text: str) -> str:
    """Text that TOML can hold: history may contain bytes that are no UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _values(item: PlannedChange) -> dict[str, Any]:
    """The keys of one ``[[change]]``, in order; empty ones are left out."""
    change, decision, identity = item.change, item.decision, item.change.identity
    values: dict[str, Any] = {"commit": change.oid}
    if identity is not None:
        values |= {"pr": identity.number, "pr_confidence": str(identity.confidence)}
    values |= {"subject": change.commit.subject, "decision": str(decision.kind), "planned": str(decision.kind)}
    values |= {"reason": decision.reason, "owner": decision.owner, **_found(item)}
    return {key: value for key, value in values.items() if value not in ("", [])}


def _found(item: PlannedChange) -> dict[str, list[str]]:
    return {
        "evidence": [_clean(f"{e.strength}: {e.detail}") for e in item.decision.evidence],
        "depends_on": [_clean(f"{d.label}: {', '.join(d.paths)}") for d in item.depends_on],
    }


def updated_manifest(text: str, plan: Plan, file: str = "manifest") -> str:
    """An existing manifest, brought up to date with a plan that was built with it. Unchanged plans give the same text.

    Raises:
        ConfigError: the text is no valid manifest.
    """
    import tomlkit

    manifest = parse_manifest(text, file)
    document = tomlkit.parse(text)
    tables: Any = document.get("change", [])
    items = {item.change.oid: item for item in plan.items}
    listed: set[str] = set()
    changed = False
    for entry, table in zip(manifest.entries, tables, strict=True):
        item = items.get(entry.commit) or next((i for oid, i in items.items() if oid.startswith(entry.commit)), None)
        if item is not None:
            listed.add(item.change.oid)
            changed |= _update(table, entry, item)
    result = tomlkit.dumps(document) if changed else text
    missing = [item for item in plan.items if item.change.oid not in listed]
    if missing and not result.endswith("\n"):
        result += "\n"
    return result + "".join(_change_text(item) for item in missing)


def _update(table: Table, entry: Entry, item: PlannedChange) -> bool:
    """Write what the plan found into one entry, and say whether anything changed."""
    found = _values(item)
    changed = False
    if not entry.by_hand and item.decision.by != "manifest" and item.decision.kind != entry.decision:
        changed = True
        table["planned"] = str(item.decision.kind)
        for key in ("decision", "reason", "owner"):
            changed |= _set(table, key, found.get(key))
    for key in ("evidence", "depends_on"):
        changed |= _set(table, key, found.get(key))
    return changed


def _set(table: Table, key: str, value: Any) -> bool:
    old = table.get(key)
    if value is None:
        if old is None:
            return False
        del table[key]
        return True
    if old is not None and old.unwrap() == value:
        return False
    if old is None:
        # After the last key rather than after the blank lines and comments that lead to the next table.
        _insert_last(table, key, _toml(value))
    else:
        table[key] = _toml(value)
    return True


def _insert_last(table: Table, key: str, value: Any) -> None:
    from tomlkit.items import Comment, Whitespace

    body = table.value.body
    tail: list[Any] = []
    while body and isinstance(body[-1][1], (Comment, Whitespace)):
        tail.insert(0, body.pop())
    table.add(key, value)
    body.extend(tail)


def record_mirrored(text: str, commits: Mapping[str, str], file: str = "manifest") -> str:
    """The manifest with the downstream commit of each mirrored upstream change (``{upstream id: downstream id}``) filled in."""
    import tomlkit

    manifest = parse_manifest(text, file)
    document = tomlkit.parse(text)
    tables: Any = document.get("change", [])
    changed = False
    for entry, table in zip(manifest.entries, tables, strict=True):
        target = commits.get(entry.commit)
        if target is not None:
            changed |= _set(table, "mirrored", target)
    return tomlkit.dumps(document) if changed else text
