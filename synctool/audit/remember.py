"""Remembers what each check found for the same inputs, so that a second audit reads results instead of trees.

Results are kept in the user's cache under a hash of everything they depend on: objects, policy, engine, image, recorded services, and the audit's own
source. A damaged entry is checked afresh.
"""

from __future__ import annotations

import gc
import hashlib
import importlib.metadata
import json
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from typing import Any

from synctool.audit.baseline import Baseline
from synctool.audit.context import Audit
from synctool.audit.finding import Edit, Hit, Rule
from synctool.audit.run import CHECKS, Result, divided, load_check
from synctool.patches.store import cache_folder
from synctool.progress import Progress, silent
from synctool.whole_file import write_whole


def remembered_run(
    audit: Audit,
    *,
    baseline: Baseline,
    key: list[str] | None,
    only: Collection[str] = (),
    skip: Collection[str] = (),
    progress: Progress = silent,
    folder: Path | None = None,
) -> Result:
    """``run`` with a memory. ``key`` names the inputs; None checks everything afresh and keeps nothing."""
    for name in (*only, *skip):
        load_check(name)
    chosen = [name for name in CHECKS if (not only or name in only) and name not in skip]
    path = None if key is None else (folder or cache_folder() / "audits") / f"{_digest(audit, key)}.json"
    known = _load(path) if path is not None else {}
    hits: list[Hit] = []
    fresh = False
    gc.disable()  # millions of syntax tree nodes that live to the end: collecting them takes a third of the time
    try:
        for number, name in enumerate(chosen):
            progress(number, len(chosen), name)
            rules = {rule.id: rule for rule in load_check(name).RULES}
            found = _restored(known.get(name), rules)
            if found is None:
                if not fresh:
                    audit.tree.preload(list(audit.tree.entries))
                found, fresh = list(load_check(name).check(audit)), True
                known[name] = [_plain(hit) for hit in found]
            hits.extend(found)
    finally:
        gc.enable()
    progress(len(chosen), len(chosen))
    if fresh and path is not None:
        write_whole(path, json.dumps(known).encode())
    return divided(hits, chosen, baseline)


def _digest(audit: Audit, key: list[str]) -> str:
    served = [[list(one.routes), one.by] for one in audit.served]
    return hashlib.sha256(json.dumps([key, served, _code()]).encode("utf-8", "surrogateescape")).hexdigest()


@lru_cache(maxsize=1)
def _code() -> str:
    """The source of the audit and of the translator, and the linter's version: a changed check has found nothing yet."""
    state = hashlib.sha256(importlib.metadata.version("ruff").encode())
    top = Path(__file__).parent
    for folder in (top, top.parent / "translate", top.parent / "policy"):
        for file in sorted(folder.rglob("*.py")):
            state.update(file.read_bytes())
    return state.hexdigest()


def _load(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _plain(hit: Hit) -> list[Any]:
    edit = [hit.edit.path, hit.edit.line, hit.edit.old, hit.edit.new] if hit.edit is not None else None
    return [hit.rule.id, hit.subject, hit.path, hit.line, hit.message, hit.mend, edit]


def _restored(rows: Any, rules: dict[str, Rule]) -> list[Hit] | None:
    try:
        return [
            Hit(rules[rule], subject, path, line, message, mend, Edit(*edit) if edit is not None else None)
            for rule, subject, path, line, message, mend, edit in rows
        ]
    except (TypeError, ValueError, KeyError):
        return None
