"""The ``[[evidence]]`` tables of a manifest: what held when the sync was closed, written into the reviewable record. Tables that a person wrote stay."""

from __future__ import annotations

import shlex
from typing import Any

from synctool.evidence.standing import Assessed, Ledger
from synctool.plan.manifest import parse_manifest


def with_evidence(text: str, ledger: Ledger, file: str = "manifest") -> str:
    """The manifest with a table for each record that counts. Ours are told by their ``record`` and are replaced; all else stays byte for byte.

    Raises:
        ConfigError: the text is no manifest.
    """
    import tomlkit

    parse_manifest(text, file)
    document = tomlkit.parse(text)
    tables: Any = document.get("evidence", [])
    wanted = {row.record.id: row for row in ledger.counting()}
    kept = [table for table in tables if not table.get("record") or table.get("record") in wanted]
    known = {table.get("record") for table in kept}
    missing = [row for record, row in wanted.items() if record not in known]
    if len(kept) != len(tables):
        if kept:
            array = tomlkit.aot()
            array.extend(kept)
            document["evidence"] = array
        else:
            del document["evidence"]
        text = tomlkit.dumps(document)
    if missing and not text.endswith("\n"):
        text += "\n"
    return text + "".join(_table(row) for row in missing)


def _table(row: Assessed) -> str:
    import tomlkit

    record = row.record
    values = {
        "name": record.name,
        "head": record.head or "",
        "tree": record.tree or "",
        "command": shlex.join(record.command),
        "outcome": str(record.outcome),
        "record": record.id,
        "note": f"{row.standing}: differs only in {len(row.paths)} neutral path(s)" if row.paths else "",
    }
    table = tomlkit.table()
    for key, value in values.items():
        if value:
            table.add(key, value)
    return "\n[[evidence]]\n" + table.as_string()
