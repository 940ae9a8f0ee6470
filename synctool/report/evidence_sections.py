"""The sections that come out of the ledger: what was seen on which tree, what is no evidence for this head, what was lost, refused and is still owed."""

from __future__ import annotations

import shlex
from pathlib import PurePath
from typing import Any

from synctool.evidence.record import Outcome, Record, Source
from synctool.evidence.standing import Assessed, Ledger, Standing
from synctool.policy.model import EvidenceKind, Policy
from synctool.report.claims import POLICY, Claim, Section
from synctool.report.markdown import code, link, listed, plain


def record_source(row: Assessed) -> dict[str, Any]:
    """What a record says, its standing included."""
    return {
        **row.record.to_json(),
        "standing": str(row.standing),
        "paths": list(row.paths),
        "path_count": len(row.paths),
        "rules": list(row.rules),
        "replaced_by": row.replaced_by,
    }


def evidence_sections(ledger: Ledger, policy: Policy) -> list[Section]:
    """All sections about evidence."""
    counting = ledger.counting()
    passed = [row for row in counting if row.record.outcome is Outcome.PASSED]
    audits = [row for row in passed if row.record.kind is EvidenceKind.AUDIT]
    images = [row for row in passed if row.record.kind is EvidenceKind.IMAGE]
    others = [row for row in passed if row not in audits and row not in images]
    failed = [row for row in counting if row.record.outcome is Outcome.FAILED]
    refused = [row for row in counting if row.record.outcome is Outcome.REFUSED]
    lists = (
        ("Audit", audits, _seen),
        ("Validation on this head", [r for r in others if r.standing is Standing.CURRENT], _seen),
        ("Validation carried over: the tree is equal", [r for r in others if r.standing is Standing.CARRIED], _seen),
        ("Validation narrowed: only neutral paths differ", [r for r in others if r.standing is Standing.NARROWED], _seen),
        ("Images", images, _seen),
        ("Failed", failed, _seen),
        ("Not done, and why", refused, _refused),
        ("Retries", [r for r in counting if r.record.retries], _retried),
    )  # fmt: skip
    found = [Section(title, tuple(claim(row) for row in rows)) for title, rows, claim in lists]
    found.append(_pending(ledger, policy))
    lost = [row for row in ledger.rows if not row.counts or row.record.outcome in (Outcome.CANCELLED, Outcome.LOST)]
    found.append(Section("Not evidence for this head", tuple(map(_not_evidence, lost))))
    return found


def _name(record: Record) -> str:
    run = f" run {link(record.run, record.url) if record.url else plain(record.run)}" if record.run else ""
    where = f" ({plain(record.platform)})" if record.platform else ""
    return f"**{plain(record.name)}**{run}{where}"


def _figures(record: Record) -> str:
    told = [f"{value:,} {plain(key)}" for key, value in record.figures.items() if value or key in ("findings",)]
    return ", ".join(told)


def _seen(row: Assessed) -> Claim:
    record = row.record
    parts = [f"{_name(record)} {record.outcome}"]
    if figures := _figures(record):
        parts[0] += f": {figures}"
    if record.exit_status is not None and record.outcome is not Outcome.PASSED:
        parts.append(f"exit status {record.exit_status}")
    if record.source is not Source.RUN:  # what our own verbs print beside figures stays in the record
        parts += [f"{plain(key)}: {plain(value)}" for key, value in record.details.items()]
    if record.kind is EvidenceKind.IMAGE:
        parts += [f"{plain(one.name)} {code(one.digest)}" for one in record.artifacts]
    if record.stack:
        parts.append(f"patch stack {code(record.stack[:16])}")
    if record.note:
        parts.append(plain(record.note))
    parts += _standing(row)
    if record.source is Source.ATTESTED:
        parts.append(f"seen elsewhere, not run by vime-sync; signed off by {plain(record.signed_off_by)}")
    elif record.source is Source.IMPORTED:
        parts.append("imported")
    if record.command:
        program, *rest = record.command
        parts.append(code(shlex.join([PurePath(program).name, *rest])))
    return Claim("; ".join(parts) + ".", (record.id,))


def _standing(row: Assessed) -> list[str]:
    record = row.record
    if row.standing is Standing.CARRIED:
        return [f"seen on head {code((record.head or 'unknown')[:12])}, whose tree is this head's tree"]
    if row.standing is Standing.NARROWED:
        return [
            f"seen on head {code((record.head or 'unknown')[:12])}, tree {code((record.tree or '')[:12])}; "
            f"since then only {listed(row.paths)} changed: {'; '.join(map(plain, row.rules))}"
        ]
    return []


def _refused(row: Assessed) -> Claim:
    return Claim("; ".join([f"{_name(row.record)}: {plain(row.record.note)}", *_standing(row)]) + ".", (row.record.id,))


def _retried(row: Assessed) -> Claim:
    told = [
        f"{plain(one.what)}"
        + (f" (exit status {one.exit_status})" if one.exit_status is not None else "")
        + f": {plain(one.reason)}"
        for one in row.record.retries
    ]
    return Claim(f"{_name(row.record)} was made again: {'; '.join(told)}.", (row.record.id,))


def _pending(ledger: Ledger, policy: Policy) -> Section:
    claims = []
    for row in ledger.counting():
        if row.record.outcome is Outcome.PENDING:
            note = f" {plain(row.record.note)}." if row.record.note else ""
            claims.append(Claim(f"{_name(row.record)} has not ended.{note}", (row.record.id,)))
    claims += [
        Claim(
            f"**{plain(rule.name)}** is required ({plain(rule.reason)}), and no passed record of it holds.", (POLICY,)
        )
        for rule in policy.required
        if not ledger.green(rule.name)
    ]
    return Section("Pending", tuple(claims))


def _not_evidence(row: Assessed) -> Claim:
    record = row.record
    figures = _figures(record)
    parts = [f"{_name(record)} {record.outcome}{f' ({figures})' if figures else ''}"]
    head = code((record.head or "unknown")[:12])
    if row.standing is Standing.PARENT:
        parts.append(f"it belongs to the parent, head {head}")
    elif row.standing is Standing.STALE:
        parts.append(
            f"on another revision, {head}, which differs in {listed(row.paths, 4)}; it does not speak for this head"
        )
    elif row.standing is Standing.UNKNOWN:
        parts.append(f"on head {head}, which is not in this repository")
    else:
        parts.append(f"on head {head}")
    if record.retries:
        parts.append("an attempt was lost and made again")
    if record.note:
        parts.append(plain(record.note))
    if row.replaced_by:
        parts.append(f"replaced by {code(row.replaced_by)}")
    return Claim("; ".join(parts) + ".", (record.id,))
